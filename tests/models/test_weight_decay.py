"""Learned frequencies are left alone by weight decay."""

import pytest
import torch
from build import build
from fairseq import optim
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim.adam import FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf

from pe_fairseq.errors import UserError

FREQUENCIES = "learnable-sinusoidal+learnable-sinusoidal-relative"


def config(weight_decay=0.5, **common):
    adam = OmegaConf.structured(FairseqAdamConfig(_name="adam", weight_decay=weight_decay))
    adam.lr = [0.1]
    adam.tpu = False
    whole = OmegaConf.structured(FairseqConfig())
    fields = {"fp16_no_flatten_grads": False, "bf16": False, "fp16_scale_window": 1, **common}
    for key, value in {"fp16_init_scale": 1, "threshold_loss_scale": None, **fields}.items():
        OmegaConf.update(whole, f"common.{key}", value, force_add=True)
    return OmegaConf.create(
        {"optimizer": adam, "common": OmegaConf.to_container(whole)["common"]},
        flags={"allow_objects": True},
    )


def decayed(optimizer, model):
    """Names of the parameters that a step without a gradient changes."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


def test_adam():
    model = build(decoder_position=FREQUENCIES)
    optimizer = optim.build_optimizer(config().optimizer, list(model.parameters()))
    changed = decayed(optimizer, model)
    assert "decoder.embed_tokens.weight" in changed
    frequencies = {name for name, _ in model.named_parameters() if "frequencies" in name}
    assert len(frequencies) == 3 and not frequencies & changed


def test_bf16_keeps_the_exemption_on_its_float32_copies():
    model = build(decoder_position=FREQUENCIES).bfloat16()
    optimizer = FP16Optimizer.build_optimizer(config(bf16=True), list(model.parameters()))
    groups = optimizer.fp32_optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert len(groups[1]["params"]) == 3


def test_one_flat_vector_is_refused():
    parameters = list(build(decoder_position=FREQUENCIES).half().parameters())
    with pytest.raises(UserError, match="--fp16-no-flatten-grads"):
        FP16Optimizer.build_optimizer(config(), parameters)
    FP16Optimizer.build_optimizer(config(weight_decay=0.0), parameters)


def test_other_schemes_have_one_group():
    model = build(decoder_position="learned+shaw")
    optimizer = optim.build_optimizer(config().optimizer, list(model.parameters()))
    assert len(optimizer.param_groups) == 1
