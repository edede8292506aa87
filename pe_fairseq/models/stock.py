"""Stock fairseq language models as ours: the same weights, the same function."""

import dataclasses
import logging
import os
from argparse import Namespace
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
)
from omegaconf import DictConfig, OmegaConf, open_dict

from .. import attention, positions
from ..errors import UserError
from .config import PeLanguageModelConfig

logger = logging.getLogger(__name__)

STOCK = "transformer_lm"


def is_stock(model):
    """True for the config of a stock Transformer language model, of whatever size."""
    name = getattr(model, "_name", None) or getattr(model, "arch", None)
    return ARCH_MODEL_NAME_REGISTRY.get(name) == STOCK


def from_stock(model, name="pe_lm"):
    """Return our config, a dict, for the config of a stock language model.

    The stock model's own flags are kept, post-norm and all; the two that say which
    positions it has become ``decoder_position``.
    """
    old = _filled(model)
    if old.no_token_positional_embeddings:
        position = "none"
    else:
        position = "learned" if old.decoder_learned_pos else "sinusoidal"
    ours = {
        field.name: getattr(old, field.name)
        for field in dataclasses.fields(PeLanguageModelConfig)
        if hasattr(old, field.name)
    }
    return {
        **ours,
        "_name": name,
        "decoder_position": position,
        "decoder_learned_pos": False,
        "no_token_positional_embeddings": False,
    }


def _filled(model):
    """The stock config as a Namespace, with what its named architecture fills in."""
    if isinstance(model, DictConfig):
        model = OmegaConf.to_container(model, resolve=True, enum_to_str=True)
    else:
        model = vars(model)
    filled = Namespace(**model)
    name = getattr(filled, "_name", None) or filled.arch
    ARCH_CONFIG_REGISTRY[name](filled)
    defaults = MODEL_DATACLASS_REGISTRY[STOCK]()
    for field in dataclasses.fields(defaults):
        value = getattr(defaults, field.name)
        if not hasattr(filled, field.name) and not str(value).startswith("${"):
            setattr(filled, field.name, value)
    return filled


def adopt(cfg, name, changes):
    """Turn ``cfg.model`` into the config of our model ``name`` if it is a stock one.

    Args:
        cfg: a checkpoint's whole config, changed in place.
        name: a model's name; nothing happens for one that is not ours.
        changes: what else the user overrides in the model.

    Raises:
        UserError: ``changes`` names another position scheme than the stock model has.
    """
    dataclass = MODEL_DATACLASS_REGISTRY.get(name)
    if dataclass is None or not issubclass(dataclass, PeLanguageModelConfig):
        return
    if not is_stock(cfg.model):
        return
    ours = from_stock(cfg.model, name)
    wanted = changes.get("decoder_position", ours["decoder_position"])
    if positions.parse(wanted).name != ours["decoder_position"]:
        raise UserError(
            f"the stock checkpoint has '{ours['decoder_position']}' positions, not '{wanted}'"
        )
    with open_dict(cfg):
        cfg.model = OmegaConf.create(ours)


# Fields that change what a model computes and not the shape of its weights, so that the
# weights of one load into another without a word. The value is that of checkpoints made
# before the field existed; None where it always did.
FUNCTION = {
    "decoder_position": None,
    "decoder_attention": "softmax",
    "decoder_position_stride": 1,
    "decoder_position_offset": 0,
    "decoder_attention_heads": None,
    "activation_fn": None,
    "no_scale_embedding": None,
    "decoder_normalize_before": None,
}


def refuse_other_model(path, saved, wanted, new_run):
    """Compare the model of a checkpoint with that of the run that loads it.

    Args:
        saved, wanted: their configs.
        new_run: the run takes the weights alone and starts anew, so that a change may be
            meant; it is logged.

    Raises:
        UserError: the run would go on as another model.
    """
    if not hasattr(wanted, "decoder_position"):
        return
    if is_stock(saved):
        saved = Namespace(**from_stock(saved))
    if not hasattr(saved, "decoder_position"):
        return
    for name, default in FUNCTION.items():
        before, now = getattr(saved, name, default), getattr(wanted, name)
        if name == "decoder_position":
            before, now = positions.parse(before), positions.parse(now)
        if str(before) != str(now):
            difference = (
                f"{path} was trained with --{name.replace('_', '-')} '{before}', this run "
                f"says '{now}'"
            )
            if not new_run:
                raise UserError(f"{difference}; use the same, or another --save-dir")
            logger.warning(difference)
    trained = getattr(saved, "dictionary_sha256", None)
    if trained is not None and trained != wanted.dictionary_sha256:
        raise UserError(
            f"{path} was trained with another dictionary than that of the data folder; "
            "use the data that it was trained with, or another --save-dir"
        )


def refuse_other_scheme(model, changes):
    """Raise UserError if ``changes`` give a trained model of ours another scheme or attention.

    Options of a scheme may change (a base, a clip): that is how a scheme is tried out of its
    range.
    """
    if "decoder_attention" in changes and hasattr(model, "decoder_position"):
        trained = getattr(model, "decoder_attention", "softmax")
        if str(attention.parse(changes["decoder_attention"])) != str(attention.parse(trained)):
            raise UserError(
                f"--model-overrides: the checkpoint was trained with '{trained}' attention; it "
                f"cannot be evaluated with '{changes['decoder_attention']}'"
            )
    trained, asked = getattr(model, "decoder_position", None), changes.get("decoder_position")
    if trained is None or asked is None:
        return
    if positions.parse(asked).name != positions.parse(trained).name:
        raise UserError(
            f"--model-overrides: the checkpoint was trained with '{trained}' positions; it "
            f"cannot be evaluated with '{asked}'"
        )


def convert(source, target):
    """Write the stock checkpoint ``source`` as one of ``pe_lm`` to ``target``.

    Weights, optimizer and data position are kept as they are.

    Raises:
        UserError: ``source`` is no stock language model, or ``target`` exists.
    """
    if Path(target).exists():
        raise UserError(f"{target} exists; convert does not overwrite")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(source))
    if not is_stock(state["cfg"].model):
        name = getattr(state["cfg"].model, "_name", None)
        raise UserError(f"{source} is a '{name}' model, not a stock {STOCK}")
    config = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    config["model"] = from_stock(state["cfg"].model)
    partial = Path(f"{target}.partial")
    if not partial.parent.is_dir():
        raise UserError(f"there is no folder {partial.parent}")
    try:
        torch.save({**state, "cfg": config}, partial)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return config["model"]["decoder_position"]
