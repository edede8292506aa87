"""Sizes, defaults, refusals, and checkpoints made before an option existed."""

import argparse

import pytest
import torch
from build import SMALL, Task, build, tokens
from fairseq import models, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from pe_fairseq.errors import UserError
from pe_fairseq.models.named import ARCHITECTURES


def saved_config():
    config = OmegaConf.to_container(
        OmegaConf.structured(ARCHITECTURES["pe_lm"].config(_name="pe_lm"))
    )
    return {**config, **SMALL}


def command_line(*arguments, arch="pe_lm"):
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(
        parser, ["data", "--task", "language_modeling", "--arch", arch, *arguments]
    )
    return convert_namespace_to_omegaconf(args).model


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_size_is_pre_norm(arch):
    assert command_line(arch=arch).decoder_normalize_before is True
    assert command_line("--decoder-normalize-before", arch=arch).decoder_normalize_before
    assert not command_line("--no-decoder-normalize-before", arch=arch).decoder_normalize_before


def test_wiki103_is_stock_fairseq_s():
    """Baevski & Auli's size differs from stock's in the position fields alone."""
    args = argparse.Namespace()
    models.ARCH_CONFIG_REGISTRY["transformer_lm_wiki103"](args)
    ours = command_line(arch="pe_lm_wiki103")
    for name, value in vars(args).items():
        if name not in ("decoder_input_dim", "decoder_output_dim", "base_shuffle"):
            assert getattr(ours, name) == value, name


def test_adaptive_input_can_be_switched_off_by_name():
    assert command_line(arch="pe_lm_wiki103").adaptive_input
    assert command_line("--adaptive-input", arch="pe_lm_wiki103").adaptive_input
    assert not command_line("--no-adaptive-input", arch="pe_lm_wiki103").adaptive_input


def test_the_same_model_by_command_line_and_by_yaml():
    """hydra names a model in yaml and fills in its dataclass, sizes and all."""
    from fairseq.dataclass.initialize import add_defaults

    yaml = OmegaConf.create(
        {"model": {"_name": "pe_lm_tiny", "decoder_position": "learned"}, "task": None}
    )
    yaml.task = {"_name": "language_modeling", "tokens_per_sample": 1024}
    yaml.common = {"tpu": False}
    add_defaults(yaml)
    yaml = OmegaConf.to_container(yaml, resolve=False)["model"]
    line = OmegaConf.to_container(
        command_line("--decoder-position", "learned", arch="pe_lm_tiny")
    )
    for key, value in line.items():
        if not str(yaml[key]).startswith("${"):
            assert str(yaml[key]) == str(value), key


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_checkpoint_from_before_an_option_existed(arch):
    """Fields that a saved config lacks come from the size's defaults."""
    saved = OmegaConf.to_container(OmegaConf.structured(ARCHITECTURES[arch].config(_name=arch)))
    small = {**SMALL, "adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20"}
    small.update(
        {key: value for key, value in saved.items() if "cutoff" not in key and key not in SMALL}
    )
    if not arch.endswith("wiki103"):
        small.update(adaptive_input_cutoff=None, adaptive_softmax_cutoff=None)
    old = {
        key: value
        for key, value in small.items()
        if not key.startswith(("decoder_position", "dictionary", "scale_", "decoder_xformers"))
    }
    assert len(old) < len(small) - 9
    built = [
        (torch.manual_seed(1), models.build_model(OmegaConf.create(config), Task(), True))[1]
        for config in (small, old)
    ]
    for a, b in zip(built[0].parameters(), built[1].parameters()):
        assert torch.equal(a, b)
    assert str(built[1].decoder.scheme) == saved["decoder_position"]


def test_an_option_that_is_gone_is_dropped_from_an_old_checkpoint():
    config = OmegaConf.create({**saved_config(), "an_option_of_long_ago": 3})
    assert models.build_model(config, Task(), from_checkpoint=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_learned_pos": True}, "write --decoder-position learned"),
        ({"decoder_learned_pos": True, "decoder_position": "learned"}, "--decoder-learned-pos"),
        ({"no_token_positional_embeddings": True}, "write --decoder-position none"),
        ({"decoder_xformers_att_config": "{}"}, "xformers"),
        (
            {"adaptive_softmax_cutoff": "__import__('os')"},
            "adaptive_softmax_cutoff takes whole",
        ),
        ({"adaptive_input_cutoff": "5;6"}, "adaptive_input_cutoff takes whole numbers"),
        ({"character_filters": "print(1)"}, "character_filters takes a list"),
        ({"decoder_attention_heads": 3}, "16 does not divide into 3"),
        ({"decoder_attention_heads": 0}, "must be 1 or more"),
        ({"dropout": 1.5}, "dropout=1.5 is no probability"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1 is no probability"),
        ({"max_target_positions": 0}, "max_target_positions=0 must be 1 or more"),
        ({"adaptive_input": True}, "needs --adaptive-input-cutoff"),
        ({"adaptive_softmax_cutoff": "10,99"}, "stay below the 44 symbols"),
        ({"adaptive_softmax_cutoff": "20,10"}, "must rise"),
        ({"adaptive_softmax_cutoff": "0100"}, "takes whole numbers"),
        ({"decoder_layers_to_keep": "x"}, "takes layer numbers"),
        (
            {"share_decoder_input_output_embed": True, "decoder_input_dim": 8},
            "needs equal decoder_input_dim",
        ),
        ({"tie_adaptive_weights": True}, "needs --adaptive-input"),
        ({"decoder_position_stride": 0}, "the position stride is 0"),
        ({"decoder_position_offset": -1}, "the position offset is -1"),
        ({"decoder_position": "learnd"}, "did you mean 'learned'"),
        (
            {"decoder_position": "learned", "decoder_position_beyond": "interpolate"},
            "needs a position length above",
        ),
        ({"decoder_position": "none", "decoder_position_length": 99}, "has no table"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        build(**options)


def test_a_misspelt_scheme_is_refused_while_the_command_line_is_read(capsys):
    with pytest.raises(SystemExit) as exit:
        command_line("--decoder-position", "rop")
    assert str(exit.value.code).startswith("pe-fairseq: error: unknown position scheme 'rop'")
    assert "\n" not in str(exit.value.code)


def test_the_dictionary_is_remembered_and_another_refused():
    whole = OmegaConf.create({"model": saved_config()})
    models.build_model(whole.model, Task())
    assert len(whole.model.dictionary_sha256) == 64
    models.build_model(whole.model, Task())
    other = Task()
    other.source_dictionary.symbols[5:7] = reversed(other.source_dictionary.symbols[5:7])
    with pytest.raises(UserError, match="is not the one that the checkpoint was trained with"):
        models.build_model(whole.model, other)


def test_input_and_output_follow_the_embedding():
    """Stock's bare name keeps 512 here, and projects to and from it."""
    model = build(decoder_embed_dim=32)
    assert model.decoder.project_in_dim is None and model.decoder.project_out_dim is None
    assert model(tokens())[0].shape[-1] == len(model.decoder.dictionary)


def test_weights_that_do_not_fit_are_one_line():
    state = build(decoder_layers=3).state_dict()
    with pytest.raises(UserError, match="do not fit this model: Unexpected key") as error:
        build().load_state_dict(state)
    assert "\n" not in str(error.value)
