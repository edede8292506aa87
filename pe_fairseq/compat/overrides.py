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


def apply_overrides(cfg, overrides, task_is_built=False):
    """Change ``cfg``, a checkpoint's whole config, in place.

    Flat keys change every config that has them. ``{'model': {…}}`` changes the model
    alone; with ``'_name'`` of one of our models in it, a stock language model becomes
    ours.

    Args:
        task_is_built: the command made its task from its own flags (eval-lm, generate,
            interactive), so that only the model's keys have an effect.

    Raises:
        UserError: a key has no effect, or gives a trained model another scheme.
    """
    overrides = dict(overrides)
    if "model" in overrides:
        _override_model(cfg, overrides.pop("model"))
    checked = overrides
    if "model_overrides" in overrides:  # fairseq-validate: the command's own flags too
        checked = parse_overrides(overrides["model_overrides"])
    for key, value in checked.items():
        _refuse_unknown(cfg, key, value, task_is_built)
    stock.refuse_other_scheme(cfg.model, checked)
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
    if not isinstance(changes, dict):
        raise UserError(f"the override 'model' takes a dict, not {changes!r}")
    name = changes.get("_name")
    if name is not None:
        if name not in ARCH_MODEL_NAME_REGISTRY:
            raise UserError(
                f"--model-overrides: there is no model '{name}'"
                f"{nearest(name, ARCH_MODEL_NAME_REGISTRY)}"
            )
        stock.adopt(cfg, name, changes)
    stock.refuse_other_scheme(cfg.model, changes)
    known = _model_keys(cfg)
    for key, value in changes.items():
        if key not in known:
            raise UserError(
                f"--model-overrides: the model takes no '{key}'{nearest(str(key), known)}"
            )
        if isinstance(cfg.model, Namespace):
            setattr(cfg.model, key, value)
        else:
            with open_dict(cfg.model):
                cfg.model[key] = value


def _refuse_unknown(cfg, key, value, task_is_built):
    known = _model_keys(cfg)
    if not task_is_built:
        known |= _keys(cfg)
        for _, fields in _dataclass_nodes(cfg):
            known |= fields
        for registry in REGISTRIES.values():
            for dataclass in registry["dataclass_registry"].values():
                known |= set(dataclass.__dataclass_fields__)
    if key not in known:
        raise UserError(
            f"--model-overrides: the checkpoint's model takes no '{key}'"
            f"{nearest(str(key), known)}"
        )
    if isinstance(value, dict):
        raise UserError(f"--model-overrides: '{key}' takes no dict; only 'model' does")


def _model_keys(cfg):
    return _fields(MODEL_DATACLASS_REGISTRY, _model_name(cfg.model)) | _keys(cfg.model)


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
