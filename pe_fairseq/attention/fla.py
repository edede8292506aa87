"""Causal linear attention by the GPU kernels of flash-linear-attention (Yang & Zhang 2024).

Its ``chunk_simple_gla``, with the signature of version 0.6.0, goes by chunks of 64 tokens, with
one decay for each head, and has a backward pass of its own. It has no denominator: here values
have columns of 1 beside them, whose sums are the denominators and whose state is z.

Everything is float32, as in the torch form, but for the products, which are TF32 (11 bits):
no fewer than half precision has. float32 itself goes there only where torch may use TF32.

This has not run on a GPU yet. On a CPU, Triton's interpreter has given what the torch form
gives. The first call of each size compares the kernels, on that GPU, with the formula.

Letters for shapes: B batch, H heads, N length, M features, D head_dim.
"""

import functools
import importlib.metadata
import logging
import math
import os
import re
from typing import Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError

logger = logging.getLogger(__name__)

DEVICE = "cuda"
SWITCH = "PE_FAIRSEQ_FLA"
TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"  # torch's own
OLDEST = (0, 6)  # older ones count with 32 bits, too few for the largest tensors
CHUNK = 64
COLUMNS = 16  # rows of so many numbers are read fastest
# Past the end of a text, the kernels raise 1 / r to powers up to 63. One that no float32 holds
# makes the state NaN.
SMALLEST_LOG_DECAY = -128 * math.log(2) / (CHUNK - 1)
TRIAL_LENGTH = 500
TOLERANCE = 0.02  # TF32 errs by 0.001; a wrong gradient, where it was seen, by 0.5


def fla_serves(
    query: Tensor,
    value: Tensor,
    log_decay: Optional[Tensor],
    key_log_scale: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
) -> bool:
    """True where the kernels do a call's work. That is logged, and so is each reason if not.

    Arguments are those of ``chunked``, as the caller gave them.

    Raises:
        UserError: the environment variable ``PE_FAIRSEQ_FLA`` is neither 0 nor 1.
    """
    reason = refusal(query, value, log_decay, key_log_scale, key_padding_mask)
    if reason is None:
        _tell(f"flash-linear-attention {installed_version()}")
    else:
        _tell(f"torch, because {reason}")
    return reason is None


@functools.cache
def _tell(way):
    logger.info("linear attention: %s", way)


def refusal(query, value, log_decay, key_log_scale, key_padding_mask) -> Optional[str]:
    """Why the kernels do not serve a call; None where they do. See ``fla_serves``."""
    if query.device.type != DEVICE:
        return f"the tensors are on {query.device.type}"
    reason = unavailable()
    if reason is not None:
        return reason
    if torch.float64 in (query.dtype, value.dtype):
        return "its kernels have no float64"
    if value.dtype == torch.float32 and not _torch_may_use_tf32():
        return f"float32 products would be TF32 (allowed by {TF32}=1)"
    if key_log_scale is not None:
        return "the scale of keys changes from token to token"
    if log_decay is not None and key_padding_mask is not None:
        return "the decay skips padding"
    if log_decay is not None and query.size(2) % CHUNK:
        if float(log_decay.min()) <= SMALLEST_LOG_DECAY:
            return f"so strong a decay needs a length that is a multiple of {CHUNK}"
    return _fault(query.device, query.size(1), query.size(3), value.size(3))


def unavailable() -> Optional[str]:
    """Why no call is served, whatever it is; None where some are.

    Raises:
        UserError: the environment variable ``PE_FAIRSEQ_FLA`` is neither 0 nor 1.
    """
    switch = os.environ.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise UserError(
            f"{SWITCH}={switch!r} is neither 0, which keeps flash-linear-attention off, nor 1"
        )
    if switch == "0":
        return f"{SWITCH}=0"
    version = installed_version()
    if version is None:
        return "flash-linear-attention is not installed (pip install 'pe-fairseq[gpu]')"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        return f"flash-linear-attention {version} is older than {'.'.join(map(str, OLDEST))}"
    return None


def installed_version() -> Optional[str]:
    """The version of flash-linear-attention, or of the part of it that has the kernels."""
    for name in ("fla-core", "flash-linear-attention"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _torch_may_use_tf32():
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # since torch 2.9
        return matmul.fp32_precision == "tf32"
    return matmul.allow_tf32


def attend_by_fla(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    values: Tensor,
    normaliser: Tensor,
    *,
    log_decay: Optional[Tensor],
    smallest: Optional[float],
) -> Tuple[Tensor, Tensor, Tensor]:
    """Attend causally, from one state to the next. All tensors are float32.

    Args:
        query, key: features ``(B, H, N, M)``; key is 0 at padding.
        value: ``(B, H, N, D)``.
        values, normaliser: T ``(B, H, M, D)`` and z ``(B, H, M)``.
        log_decay: log r of each head, ``(H,)``; None for r = 1.
        smallest: what the denominator is at least; None for outputs that are not divided.

    Returns:
        output ``(B, H, N, D)``, T and z after the last token.
    """
    head_dim = value.size(-1)
    ones = COLUMNS - head_dim % COLUMNS
    columns = normaliser.unsqueeze(-1).expand(*normaliser.shape, ones)
    if log_decay is None:
        log_decay = query.new_zeros(query.size(1))
    sums, state = _kernel()(
        *(x.transpose(1, 2) for x in (query, key, F.pad(value, (0, ones), value=1.0))),
        g_gamma=log_decay.to(query),
        scale=1.0,
        initial_state=torch.cat((values, columns), dim=-1),
        output_final_state=True,
    )
    output, denominators, _ = sums.transpose(1, 2).split((head_dim, 1, ones - 1), dim=-1)
    if smallest is not None:
        output = output / denominators.clamp(min=smallest)
    return output, state[..., :head_dim], state[..., head_dim]


def _kernel() -> Callable:
    from fla.ops.simple_gla import chunk_simple_gla

    return chunk_simple_gla


@functools.cache
def _fault(device, heads, features, head_dim) -> Optional[str]:
    """What is wrong with the kernels and their gradients on ``device``, for these sizes.

    They are compiled for each size, and compilers have got single sizes wrong on single GPUs:
    github.com/fla-org/flash-linear-attention/issues/640.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad():
            got, want = _trial(device, heads, features, head_dim)
    except Exception as error:  # Triton and drivers have no common class
        reason = str(error).strip().partition("\n")[0]
        return f"its kernels do not run on {device} ({type(error).__name__}: {reason})"
    for a, b in zip(got, want):
        if not (a - b).norm() <= TOLERANCE * b.norm():
            return f"its kernels give wrong numbers on {device}"
    return None


def _trial(device, heads, features, head_dim):
    """Sums, state and gradients by the kernels, and by the formula."""
    generator = torch.Generator(device).manual_seed(0)
    query, key, value, direction = (
        torch.rand(1, heads, TRIAL_LENGTH, size, device=device, generator=generator)
        for size in (features, features, head_dim, head_dim)
    )
    leaves = [x.requires_grad_() for x in (query, key, value)]
    log_decay = torch.linspace(-0.5, 0, heads, device=device)
    start = query.new_zeros(1, heads, features, head_dim)
    got = attend_by_fla(*leaves, start, start[..., 0], log_decay=log_decay, smallest=None)

    position = torch.arange(TRIAL_LENGTH, device=device)
    log_weights = log_decay[:, None, None] * (position[:, None] - position)
    decays = log_weights.masked_fill(position > position[:, None], -math.inf).exp()
    left = key * decays[:, -1, :, None]
    want = (query @ key.mT * decays) @ value, left.mT @ value, left.sum(2)
    return (
        (*x, *torch.autograd.grad((x[0] * direction).sum() + x[1].sum() + x[2].sum(), leaves))
        for x in (got, want)
    )
