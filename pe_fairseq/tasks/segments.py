"""One update over a long text, in the memory of a segment of it.

Under linear attention a text leaves a state of fixed size. So the forward pass goes over the
text once and keeps the state before each segment; the backward pass goes over the segments
from the last to the first, computes each again from the state before it, and hands the
gradient of that state to the segment before (Likhosherstov et al. 2020, "Sub-linear memory:
how to make Performers SLiM", §3). Loss and gradients are those of the whole text.
"""

from contextlib import ExitStack
from typing import Any, Tuple

import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from torch import Tensor

from ..errors import UserError


def check(config, size: int):
    """Raise UserError if a model of ``config`` cannot be trained by segments of ``size``."""
    if size < 1:
        raise UserError(f"--train-segment {size} must be 1 token or more")
    attention = getattr(config, "decoder_attention", "softmax")
    if attention == "softmax":
        raise UserError(
            "--train-segment needs linear attention, whose state does not grow with the text; "
            "add --decoder-attention performer, or leave --train-segment out"
        )
    if config.checkpoint_activations or config.offload_activations:
        raise UserError(
            "--train-segment computes each segment twice by itself: leave "
            "--checkpoint-activations and --offload-activations out"
        )
    if config.decoder_layerdrop:
        raise UserError(
            f"--decoder-layerdrop {config.decoder_layerdrop:g} would leave gaps in the states "
            "that --train-segment hands on: leave one of them out"
        )


def train_step(
    sample, model, criterion, optimizer, size: int, ignore_grad: bool = False
) -> Tuple[Tensor, Any, dict]:
    """Forward and backward pass over one batch, ``size`` tokens of each row at a time.

    Dropout of a segment is drawn once: the second pass over it starts from the random state
    of the first.

    Args:
        sample: fairseq's batch, ``net_input`` with ``src_tokens`` and ``target`` ``(B, N)``.
        model: in training mode.
        ignore_grad: leave zeros for gradients.

    Returns:
        the loss, the sample size and the logging output, as ``criterion`` gives them for the
        whole batch.
    """
    segments = [
        _segment(sample, start, size, criterion.padding_idx)
        for start in range(0, sample["target"].size(1), size)
    ]
    device = sample["target"].device
    starts = _first_pass(model, segments, optimizer, device)
    scale, gradients, results = _loss_scale(optimizer, device), {}, []
    for number, segment in reversed(list(enumerate(segments))):
        held, random = starts.pop()
        _set_random_state(random, device)
        leaves = _detached(held, requires_grad=True)
        state = {key: dict(entry) for key, entry in leaves.items()}
        inputs = {**segment["net_input"], "incremental_state": state}
        with ExitStack() as contexts:
            if number > 0 and hasattr(model, "no_sync"):
                contexts.enter_context(model.no_sync())
            with _autocast(optimizer, device):
                loss, *result = criterion(model, {**segment, "net_input": inputs})
            if number == len(segments) - 1:
                after_text = _random_state(device)
            onward = sum((state[key][name] * g).sum() for (key, name), g in gradients.items())
            optimizer.backward((loss + onward / scale) * (0 if ignore_grad else 1))
        results.append((loss.detach(), *result))
        gradients = {
            (key, name): value.grad
            for key, entry in leaves.items()
            for name, value in entry.items()
            if _is_state(value) and value.grad is not None
        }
    _set_random_state(after_text, device)
    return _sum(results, sample, criterion)


def _first_pass(model, segments, optimizer, device):
    """The state and the random state before each segment."""
    starts = [({}, _random_state(device))]
    with torch.no_grad(), _autocast(optimizer, device):
        for segment in segments[:-1]:
            state = _detached(starts[-1][0])
            model(**segment["net_input"], incremental_state=state, features_only=True)
            starts.append((state, _random_state(device)))
    return starts


def _segment(sample, start, size, padding_idx):
    """The batch up to the end of a segment, with the targets of the segment alone."""
    end = start + size
    target = sample["target"][:, start:end].contiguous()
    tokens = sample["net_input"]["src_tokens"][:, :end]
    return {
        **sample,
        "net_input": {**sample["net_input"], "src_tokens": tokens},
        "target": target,
        "ntokens": int(target.ne(padding_idx).sum()),
    }


def _is_state(value):
    return isinstance(value, Tensor) and value.is_floating_point()


def _detached(held, requires_grad=False):
    """A copy of an incremental state, to be changed without a trace in the first."""
    return {
        key: {
            name: value.detach().requires_grad_(requires_grad) if _is_state(value) else value
            for name, value in entry.items()
        }
        for key, entry in held.items()
    }


def _loss_scale(optimizer, device):
    """What ``optimizer.backward`` multiplies a loss with; the gradients of states have it."""
    one = torch.ones((), device=device, requires_grad=True)
    optimizer.backward(one * 1)
    return float(one.grad)


def _autocast(optimizer, device):
    """As in stock fairseq's ``train_step``."""
    return torch.autocast(device.type, enabled=isinstance(optimizer, AMPOptimizer))


def _random_state(device):
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_gpu


def _set_random_state(state, device):
    on_cpu, on_gpu = state
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu, device)


def _sum(results, sample, criterion):
    """The criterion's result for the batch, from those of its segments."""
    losses, sizes, outputs = zip(*results)
    total = {key: sum(output[key] for output in outputs) for key in outputs[0]}
    rows = sample["target"].size(0)
    sample_size = rows if criterion.sentence_avg else sum(sizes)
    return sum(losses), sample_size, {**total, "nsentences": rows, "sample_size": sample_size}
