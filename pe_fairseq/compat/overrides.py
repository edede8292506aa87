"""Guard: every key of ``--model-overrides`` must reach a config.

Stock fairseq sets the keys that it finds and ignores the others, so a misspelt key
evaluates the unchanged model in silence.
"""

import ast
from argparse import Namespace

from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, open_dict

from ..errors import UserError, nearest
from ..models import stock


def apply_overrides(cfg, overrides):
    """Change ``cfg``, a checkpoint's whole config, in place.

    Flat keys change every config that has them. ``{'model': {…}}`` changes the model
    alone; with ``'_name'`` of one of our models in it, a stock language model becomes
    ours.

    Raises:
        UserError: no config takes a key.
    """
    overrides = dict(overrides)
    model = overrides.pop("model", None)
    if isinstance(model, dict):
        _override_model(cfg, model)
    elif model is not None:
        raise UserError(f"the override 'model' takes a dict, not {model!r}")
    checked = overrides
    if "model_overrides" in overrides:  # fairseq-validate: the command's own flags too
        checked = parse_overrides(overrides["model_overrides"])
    for key in checked:
        _refuse_unknown(cfg, key)
    with open_dict(cfg):
        for node, known in _dataclass_nodes(cfg):
            for key in overrides.keys() & known:
                node.setdefault(key, None)
    overwrite_args_by_name(cfg, overrides)


def parse_overrides(text):
    """Read the text of ``--model-overrides``; UserError if it is no dict."""
    try:
        overrides = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        overrides = None
    if not isinstance(overrides, dict):
        raise UserError(
            "--model-overrides takes a Python dict in quotes, such as "
            f"\"{{'decoder_position_stride': 2}}\", not: {text}"
        )
    return overrides


def _override_model(cfg, changes):
    name = changes.get("_name")
    if name is not None:
        stock.adopt(cfg, name, changes)
    known = _fields(MODEL_DATACLASS_REGISTRY, _model_name(cfg.model)) | _keys(cfg.model)
    for key, value in changes.items():
        if key not in known:
            raise UserError(
                f"--model-overrides: the model takes no '{key}'{nearest(key, known)}"
            )
        if isinstance(cfg.model, Namespace):
            setattr(cfg.model, key, value)
        else:
            with open_dict(cfg.model):
                cfg.model[key] = value


def _refuse_unknown(cfg, key):
    known = _keys(cfg)
    for _, fields in _dataclass_nodes(cfg):
        known |= fields
    for registry in REGISTRIES.values():
        for dataclass in registry["dataclass_registry"].values():
            known |= set(dataclass.__dataclass_fields__)
    if key not in known:
        raise UserError(
            f"--model-overrides: no config of this checkpoint takes '{key}'"
            f"{nearest(key, known)}"
        )


def _dataclass_nodes(cfg):
    """The model's and the task's node, each with the fields of its dataclass today.

    A checkpoint made before an option existed has no key for it yet.
    """
    for node, registry, name in (
        (cfg.model, MODEL_DATACLASS_REGISTRY, _model_name(cfg.model)),
        (cfg.task, TASK_DATACLASS_REGISTRY, getattr(cfg.task, "_name", None)),
    ):
        if isinstance(node, DictConfig):
            yield node, _fields(registry, name)


def _model_name(model):
    name = getattr(model, "_name", None)
    return ARCH_MODEL_NAME_REGISTRY.get(name, name)


def _fields(registry, name):
    return set(registry[name].__dataclass_fields__) if name in registry else set()


def _keys(node):
    """Every key in ``node`` and in the configs inside it."""
    if isinstance(node, Namespace):
        return set(vars(node))
    keys = set()
    for key, value in node.items_ex(resolve=False):
        keys.add(key)
        if isinstance(value, (DictConfig, Namespace)):
            keys |= _keys(value)
    return keys
