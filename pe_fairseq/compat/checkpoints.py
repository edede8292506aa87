"""Repair 1: checkpoints load under torch 2.6 and later, through an allow-list.

torch.load refuses every type that it does not know, and fairseq's checkpoints hold
``argparse.Namespace``, config containers and numpy scalars. Those are put on torch's
list of safe types; the check itself stays on. A file that holds anything else is
refused with the type's name. ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1``, torch's own
switch, says that a file is trusted and may run code.
"""

import argparse
import ast
import collections
import contextvars
import os
import pickle
import re
import typing

import numpy
import omegaconf
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.logging import meters
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from ..errors import UserError
from ..models import stock
from .overrides import apply_overrides
from .patching import replace

TRUST = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

# what torch's reader raises for bytes that it cannot make sense of
UNREADABLE = (
    pickle.UnpicklingError,
    AssertionError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

_loading_run = contextvars.ContextVar("the run that a checkpoint is loaded into")
task_is_built = contextvars.ContextVar("the command has made its task", default=False)


def safe_types():
    """What a fairseq checkpoint may hold besides torch's own types.

    Entries are types, or pairs of a function and the old name that files use for it.
    """
    containers = [
        argparse.Namespace,
        collections.defaultdict,  # in omegaconf's containers
        typing.Any,
        *(bool, dict, float, int, list, set, str, tuple),
        omegaconf.DictConfig,
        omegaconf.ListConfig,
        omegaconf.base.ContainerMetadata,
        omegaconf.base.Metadata,
        omegaconf.nodes.AnyNode,
        omegaconf.nodes.BooleanNode,
        omegaconf.nodes.EnumNode,
        omegaconf.nodes.FloatNode,
        omegaconf.nodes.IntegerNode,
        omegaconf.nodes.StringNode,
        distributed_utils._TensorPlaceholder,
    ]
    old_meters = [
        (getattr(meters, name), f"{module}.{name}")
        for name in ("AverageMeter", "StopwatchMeter", "TimeMeter")
        for module in ("fairseq.meters", "fairseq.logging.meters")
    ]
    arrays = [
        numpy.ndarray,
        numpy.dtype,
        *{type(numpy.dtype(code)) for code in "?bBhHiIlLqQefdgFDGSUMmV"},
    ]
    for function in (
        numpy._core.multiarray._reconstruct,
        numpy._core.multiarray.scalar,
    ):
        arrays += [
            (function, f"{module}.multiarray.{function.__name__}")
            for module in ("numpy.core", "numpy._core")
        ]
    return [*containers, *old_meters, *arrays, *_subclasses(FairseqDataclass)]


def _subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _load_to_cpu(stock_load):
    def load_checkpoint_to_cpu(path, arg_overrides=None, load_on_all_ranks=False):
        # dataclasses of plug-ins imported since count too
        torch.serialization.add_safe_globals(safe_types())
        try:
            state = stock_load(path, None, load_on_all_ranks)
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            raise
        except UNREADABLE as error:
            raise UserError(_why_not(path, error)) from error
        if not isinstance(state.get("cfg"), DictConfig) or state["cfg"].get("model") is None:
            raise UserError(
                f"{path} holds no config, so it is no fairseq checkpoint "
                f"(it has: {', '.join(map(str, state))})"
            )
        # an old checkpoint's Namespace is in "cfg" too by now; one place to override
        state["args"] = None
        refuse_code(path, state["cfg"].model)
        if arg_overrides:
            apply_overrides(state["cfg"], arg_overrides, task_is_built.get())
        run = _loading_run.get(None)
        if run is not None:
            stock.refuse_other_model(path, state["cfg"].model, **run)
        return state

    return load_checkpoint_to_cpu


def _why_not(path, error):
    text = str(error)
    blocked = re.search(r"GLOBAL ([\w.]+)", text)
    if blocked or "Weights only load failed" in text:
        what = blocked[1] if blocked else text.partition("WeightsUnpickler error:")[2]
        what = what.strip().partition("\n")[0] or "something"
        return (
            f"{path} holds {what}, which is not on the list of types that a checkpoint may "
            "hold (or the file is corrupt), and loading it could run code. If you trust "
            f"this file, set {TRUST}=1"
        )
    if isinstance(error, KeyError) and isinstance(error.args[0], str):
        return f"{path} is no fairseq checkpoint: it has no entry {error}"
    reason = text.partition("\n")[0] or "it ends too early"
    return f"{path} is truncated, corrupt or no checkpoint: {reason}"


# read as text, never evaluated: paths and the like, and our own specs
NEVER_EVALUATED = {
    "data",
    "decoder_attention",
    "decoder_position",
    "encoder_position",
    *(
        name
        for part in FairseqConfig.__dataclass_fields__.values()
        for name in getattr(part.type, "__dataclass_fields__", ())
    ),
}


def refuse_code(path, model):
    """Raise UserError if a string in a model's config would call something.

    Stock fairseq evaluates several of them as Python (cut-offs, filters, layer lists).
    """
    if os.environ.get(TRUST) == "1":
        return
    values = vars(model) if isinstance(model, argparse.Namespace) else model
    for name, value in values.items():
        if isinstance(value, str) and name not in NEVER_EVALUATED and _calls(value):
            raise UserError(
                f"{path} has a function call in its model config, {name}={value!r}, which "
                f"fairseq would run. If you trust this file, set {TRUST}=1"
            )


def _calls(text):
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))


def _load_into_run(stock_load):
    def load_checkpoint(self, filename, reset_optimizer=False, *args, **kwargs):
        token = _loading_run.set({"wanted": self.cfg.model, "new_run": reset_optimizer})
        try:
            return stock_load(self, filename, reset_optimizer, *args, **kwargs)
        except AssertionError as error:
            raise UserError(f"{filename} does not continue this run: {error}") from error
        except ValueError as error:
            raise UserError(
                f"the optimizer state in {filename} does not fit this run ({error}); "
                "--reset-optimizer starts it anew"
            ) from error
        finally:
            _loading_run.reset(token)

    return load_checkpoint


def _load_ensemble(stock_load):
    def load_model_ensemble_and_task(filenames, arg_overrides=None, task=None, *args, **kwargs):
        token = task_is_built.set(task is not None)
        try:
            return stock_load(filenames, arg_overrides, task, *args, **kwargs)
        finally:
            task_is_built.reset(token)

    return load_model_ensemble_and_task


def _copy(stock_copy):
    def copy(src_path, dst_path, overwrite=False):
        if not PathManager.supports_rename(dst_path):
            return stock_copy(src_path, dst_path, overwrite)
        # a copy that is stopped half-way must not replace the checkpoint that was there
        part = f"{dst_path}.tmp"
        copied = stock_copy(src_path, part, overwrite)
        os.replace(part, dst_path)
        return copied

    return copy


def install():
    """Extend torch's list of safe types, and make fairseq say what is wrong with a file."""
    torch.serialization.add_safe_globals(safe_types())
    replace(checkpoint_utils, "load_checkpoint_to_cpu", _load_to_cpu)
    replace(checkpoint_utils, "load_model_ensemble_and_task", _load_ensemble)
    replace(Trainer, "load_checkpoint", _load_into_run)
    replace(PathManager, "copy", _copy)
