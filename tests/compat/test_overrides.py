import argparse

import pytest
from omegaconf import OmegaConf

from pe_fairseq.compat.overrides import apply_overrides, parse_overrides
from pe_fairseq.errors import UserError


def config(model):
    return OmegaConf.create(
        {
            "common": {"seed": 1},
            "task": {"_name": "language_modeling", "data": "d", "tokens_per_sample": 64},
            "bpe": None,
            "model": model,
        },
        flags={"allow_objects": True},
    )


def ours():
    return config({"_name": "pe_lm", "decoder_position": "sinusoidal", "dropout": 0.1})


def test_a_flat_key_reaches_every_config_that_has_it():
    cfg = ours()
    apply_overrides(cfg, {"dropout": 0.5, "tokens_per_sample": 32})
    assert cfg.model.dropout == 0.5 and cfg.task.tokens_per_sample == 32


def test_an_option_that_the_checkpoint_is_too_old_for():
    cfg = ours()
    apply_overrides(cfg, {"decoder_position_stride": 4})
    assert cfg.model.decoder_position_stride == 4


def test_nested_keys():
    cfg = ours()
    apply_overrides(cfg, {"model": {"decoder_position_offset": 3}})
    assert cfg.model.decoder_position_offset == 3


@pytest.mark.parametrize(
    "overrides",
    [
        {"decoder_positon_stride": 4},
        {"model": {"decoder_positon_stride": 4}},
        {"dropout": 0.1, "decoder_positon_stride": 1},
        {"model_overrides": "{'decoder_positon_stride': 1}", "path": "p"},
    ],
)
def test_a_misspelt_key_is_an_error(overrides):
    with pytest.raises(UserError, match="'decoder_positon_stride'.*'decoder_position_stride'"):
        apply_overrides(ours(), overrides)


def test_the_flags_of_validate_are_no_overrides_of_the_user():
    apply_overrides(ours(), {"model_overrides": "{}", "no_seed_provided": True, "path": "p"})


def test_keys_of_a_tokenizer_are_known():
    apply_overrides(ours(), {"bpe": "sentencepiece", "sentencepiece_model": "m"})


@pytest.mark.parametrize(
    "overrides",
    [
        {"task": {"tokens_per_sample": 1}},
        {"tokens_per_sample": {"x": 1}},
        {"model": None},
        {"model": {"_name": "nosuch"}},
        {1: 2},
    ],
)
def test_other_forms_are_refused(overrides):
    with pytest.raises(UserError, match="override"):
        apply_overrides(ours(), overrides)


@pytest.mark.parametrize("key", ["data", "seed", "bpe", "sentencepiece_model"])
def test_keys_without_effect_on_a_task_of_the_command(key):
    """eval-lm, generate and interactive make the task from their own flags."""
    with pytest.raises(UserError, match=f"the checkpoint's model takes no '{key}'"):
        apply_overrides(ours(), {key: "x"}, task_is_built=True)
    apply_overrides(ours(), {"dropout": 0.3}, task_is_built=True)


def test_a_trained_model_keeps_its_scheme():
    for overrides in ({"decoder_position": "none"}, {"model": {"decoder_position": "none"}}):
        with pytest.raises(UserError, match="was trained with 'sinusoidal' positions"):
            apply_overrides(ours(), overrides)
    cfg = ours()
    apply_overrides(cfg, {"decoder_position": "sinusoidal(base=500)"})
    assert cfg.model.decoder_position == "sinusoidal(base=500)"


@pytest.mark.parametrize("text", ["{a: 1}", "3", "{'a': 1", "__import__('os').getcwd()"])
def test_text_that_is_no_dict(text):
    with pytest.raises(UserError, match="takes a Python dict"):
        parse_overrides(text)


STOCK = {"_name": "transformer_lm", "decoder_embed_dim": 16, "decoder_learned_pos": True}


@pytest.mark.parametrize("as_namespace", [False, True])
def test_a_stock_model_becomes_ours(as_namespace):
    model = argparse.Namespace(**STOCK) if as_namespace else STOCK
    cfg = config(model)
    apply_overrides(cfg, {"model": {"_name": "pe_lm", "decoder_position": "learned"}})
    assert cfg.model._name == "pe_lm"
    assert cfg.model.decoder_position == "learned"
    assert cfg.model.decoder_embed_dim == 16
    assert cfg.model.decoder_learned_pos is False
    assert cfg.model.decoder_normalize_before is False  # the bare stock name is post-norm


def test_a_stock_model_keeps_its_positions():
    with pytest.raises(UserError, match="has 'learned' positions, not 'sinusoidal'"):
        apply_overrides(
            config(STOCK), {"model": {"_name": "pe_lm", "decoder_position": "sinusoidal"}}
        )


def test_a_named_stock_size_is_filled_in():
    cfg = config({"_name": "transformer_lm_gpt"})
    apply_overrides(cfg, {"model": {"_name": "pe_lm"}})
    assert cfg.model.decoder_embed_dim == 768
    assert cfg.model.decoder_normalize_before is True
    assert cfg.model.activation_fn == "gelu"
