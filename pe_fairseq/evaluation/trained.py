"""A trained language model, and all that a result must say of it."""

import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import fairseq
import torch
from fairseq import checkpoint_utils
from omegaconf import open_dict

import pe_fairseq

from ..compat.checkpoints import task_is_built
from ..errors import UserError
from ..models import stock
from ..models.decoder import PositionDecoder
from ..user_dir import code_hash, package_dir

PRECISIONS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, on its device.

    Attributes:
        model: the fairseq model.
        task: its task, which has the dictionary.
        scheme: its positions as spec text.
        train_length: tokens in a training block.
        about: what a result's signature says of it.
    """

    model: Any
    task: Any
    scheme: str
    train_length: int
    about: dict

    def refusal(self, length: int) -> Optional[str]:
        """Why a row of ``length`` tokens has no meaning for the model, or None."""
        decoder = self.model.decoder
        if isinstance(decoder, PositionDecoder):
            return decoder.refusal(length)
        if length > self.model.max_positions():
            return (
                f"the stock model takes {self.model.max_positions()} positions; a window "
                f"has {length}. Made one of ours by pe-fairseq convert it goes on, if its "
                "positions do"
            )
        return None


def load(path, data, overrides=None, precision="float32", cpu=False) -> Trained:
    """Load the checkpoint of a language model.

    Args:
        data: the folder of binary files, which has the dictionary.
        overrides: config values to change, as ``--model-overrides`` does.
        precision: one of ``PRECISIONS``; log-probabilities are float32 in each.
        cpu: stay on the CPU where there is a GPU.

    Raises:
        UserError: there is no such checkpoint or dictionary, they do not belong together,
            or the model is none that reads from left to right.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no checkpoint {path}")
    if ":" in str(data):
        raise UserError(f"fairseq takes the ':' in {data} for a list of folders; rename it")
    if not Path(data, "dict.txt").is_file():
        raise UserError(
            f"there is no dict.txt in {data}; give the folder of the binarised data"
        )
    token = task_is_built.set(True)  # of the task no key but the data may change
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path), overrides)
    finally:
        task_is_built.reset(token)
    cfg = state["cfg"]
    with open_dict(cfg):
        cfg.task.data = str(data)
    if getattr(cfg.task, "_name", None) not in ("language_modeling", "pe_language_modeling"):
        raise UserError(f"{path} is no language model: its task is {cfg.task._name}")
    if cfg.task.add_bos_token:
        raise UserError(
            f"{path} was trained with --add-bos-token, which gives every window a first token "
            "of its own; that is not served here"
        )
    if cfg.task.output_dictionary_size >= 0:
        raise UserError(
            f"{path} was trained with --output-dictionary-size; it is not served here"
        )
    [model], _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    if precision != "float32" and model.decoder.adaptive_softmax is not None:
        raise UserError(
            f"an adaptive softmax in {precision} gives log-probabilities of that precision; "
            "use float32"
        )
    device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
    model = model.to(device=device, dtype=PRECISIONS[precision]).eval()
    about = {
        "scheme": _scheme(model, cfg),
        "attention": str(getattr(model.decoder, "attention", "softmax")),
        "architecture": cfg.model._name,
        "size": _size(cfg.model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_length": cfg.task.tokens_per_sample,
        "sample_break_mode": str(cfg.task.sample_break_mode),
        "seed": cfg.common.seed,
        "updates": _updates(state),
        "overrides": overrides or {},
        "checkpoint": _sha256(path),
        "precision": precision,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": {
            "pe-fairseq": f"{pe_fairseq.__version__}+{code_hash(package_dir())[:8]}",
            "fairseq": fairseq.__version__,
            "torch": torch.__version__,
            "numpy": importlib.metadata.version("numpy"),
        },
    }
    return Trained(model, task, about["scheme"], about["train_length"], about)


def positions_of(decoder) -> dict:
    """What a result's signature says of the position ids that ``decoder`` has now."""
    if not isinstance(decoder, PositionDecoder):
        return {}
    ids, beyond = decoder.position_ids, decoder.beyond
    return {
        "position_stride": ids.stride,
        "position_offset": ids.offset,
        "beyond": beyond and f"{beyond.rule} {beyond.length or ''}".strip(),
    }


def _scheme(model, cfg):
    if isinstance(model.decoder, PositionDecoder):
        return str(model.decoder.scheme)
    if stock.is_stock(cfg.model):
        return stock.from_stock(cfg.model)["decoder_position"]
    raise UserError(
        f"the checkpoint is a '{cfg.model._name}'; only the models of pe-fairseq and "
        "fairseq's transformer_lm are served"
    )


def _size(model):
    return (
        f"{model.decoder_layers} layers of {model.decoder_embed_dim}, "
        f"{model.decoder_attention_heads} heads, ffn {model.decoder_ffn_embed_dim}"
    )


def _updates(state):
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
