"""Linear attention (Katharopoulos et al. 2020, eqs. 5 and 10; Choromanski et al. 2021, §2.2).

    output_i = Σ_j d_ij (φ(q_i) · φ(k_j)) v_j / Σ_j d_ij (φ(q_i) · φ(k_j))

over the keys j that query i may see; d_ij is 1, or falls with the distance. If causal, a
prefix leaves a state of fixed size, whatever its length:

    T_i = r T_{i−1} + φ(k_i) v_iᵀ      z_i = r z_{i−1} + φ(k_i)      d_ij = r^{i−j}

    output_i = φ(q_i)ᵀ T_i / φ(q_i)ᵀ z_i

What is here takes features φ(q) and φ(k), which are not negative. ``recurrent`` goes token by
token, and ``chunked`` by chunks of tokens, with products inside a chunk and the state between
chunks. They compute the same, and each goes on from the state that either left. Only factors
from one token to a later one of its chunk are formed, all at most 1: nothing overflows.

Shapes: B batch, H heads, Q query_len, K key_len, N length, M features, D head_dim.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .fla import attend_by_fla, fla_serves
from .linear_chunks import CausalChunks, Powers
from .plain import wide_type

# The largest features are about 1. A sum of weights below this says nothing; it is 0 for a
# token of padding that sees no key, whose output is 0.
SMALLEST_SUM = 1e-30


class State(NamedTuple):
    """What a prefix leaves to the tokens after it, in float32 or wider.

    Attributes:
        values: T, ``(B, H, M, D)``.
        normaliser: z, ``(B, H, M)``.
        log_scale: T and z are to be multiplied by exp of this, ``(B, H)``; None for 1, and
            −∞ where there was padding alone.
    """

    values: Tensor
    normaliser: Tensor
    log_scale: Optional[Tensor] = None


def two_sided(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_log_scale: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    normalize: bool = True,
) -> Tensor:
    """Attend from every query to every key, of the same text or of another.

    Args:
        query: features ``(B, H, Q, M)``.
        key: features ``(B, H, K, M)``.
        value: ``(B, H, K, D)``.
        key_log_scale: see ``chunked``; ``(B, H, K)`` or None.
        key_padding_mask: bool ``(B, K)``, True at padding, or None.
        normalize: divide by the sum of the weights.

    Returns:
        output ``(B, H, Q, D)``.
    """
    wide, given = wide_type(query), value.dtype
    query, key, value = (x.to(wide) for x in (query, key, value))
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None]
        key = key.masked_fill(padding.unsqueeze(-1), 0)
    if key_log_scale is not None:
        scale = key_log_scale.detach().to(wide)
        if key_padding_mask is not None:
            scale = scale.masked_fill(padding, float("-inf"))
        key = key * (scale - scale.amax(-1, keepdim=True)).exp().unsqueeze(-1)
    output = query @ (key.mT @ value)
    if normalize:
        output = output / (query @ key.sum(2).unsqueeze(-1)).clamp(min=SMALLEST_SUM)
    return output.to(given)


def recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Optional[State] = None,
    *,
    log_decay: Optional[Tensor] = None,
    key_log_scale: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    normalize: bool = True,
) -> Tuple[Tensor, State]:
    """Attend causally, token by token. Arguments and results are those of ``chunked``."""
    key, steps, end_scale = _scaled_keys(key, state, log_decay, key_log_scale, key_padding_mask)
    query, values, normaliser = query.to(key), *_start(key, value, state)
    outputs = []
    for i in range(query.size(2)):
        q, k, v = query[:, :, i], key[:, :, i], value[:, :, i].to(key)
        if steps is not None:
            factor = steps[:, :, i if steps.size(2) > 1 else 0].exp().unsqueeze(-1)
            values, normaliser = values * factor.unsqueeze(-1), normaliser * factor
        values = values + k.unsqueeze(-1) * v.unsqueeze(-2)
        normaliser = normaliser + k
        outputs.append((q.unsqueeze(-2) @ values).squeeze(-2))
        if normalize:
            outputs[-1] /= (q * normaliser).sum(-1, keepdim=True).clamp(min=SMALLEST_SUM)
    output = torch.stack(outputs, dim=2).to(value.dtype)
    return output, State(values, normaliser, end_scale)


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Optional[State] = None,
    *,
    log_decay: Optional[Tensor] = None,
    key_log_scale: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    normalize: bool = True,
    powers: Optional[Powers] = None,
) -> Tuple[Tensor, State]:
    """Attend causally, by chunks. Half precision is computed in float32.

    On a GPU, flash-linear-attention's kernels do the work where they serve; see ``refusal``.

    Args:
        query: features ``(B, H, N, M)``.
        key: features ``(B, H, N, M)``.
        value: ``(B, H, N, D)``.
        state: what the tokens before left, or None at the start.
        log_decay: log r of each head, ``(H,)``, at most 0; None for r = 1. Padding takes no
            part in distances.
        key_log_scale: the features of a key are to be multiplied by exp of this, ``(B, H,
            N)``; None for 1. No gradient goes there: it cancels in normalised outputs, and
            nothing but those may come of it.
        key_padding_mask: bool ``(B, N)``, True at padding, or None.
        normalize: divide by the sum of the weights.
        powers: of the permutation P that each token adds; None where features come permuted
            already. The state then counts from its own place: it is P^(−n) of the state that
            n permuted tokens leave.

    Returns:
        output ``(B, H, N, D)``, and the state after the last token.
    """
    key, steps, end_scale = _scaled_keys(key, state, log_decay, key_log_scale, key_padding_mask)
    batch_heads = key.shape[:2]
    values, normaliser = _start(key, value, state)
    smallest = SMALLEST_SUM if normalize else None
    if powers is None and fla_serves(query, value, log_decay, key_log_scale, key_padding_mask):
        inputs = (x.to(key) for x in (query, key, value))
        output, *after = attend_by_fla(
            *inputs, values, normaliser, log_decay=log_decay, smallest=smallest
        )
        return output.to(value.dtype), State(*after, end_scale)
    output, values, normaliser = CausalChunks.apply(
        *(x.to(key).flatten(0, 1) for x in (query, key, value)),
        None if steps is None else steps.flatten(0, 1),
        values.flatten(0, 1),
        normaliser.flatten(0, 1),
        smallest,
        powers,
    )
    output, values, normaliser = (
        x.unflatten(0, batch_heads) for x in (output, values, normaliser)
    )
    return output.to(value.dtype), State(values, normaliser, end_scale)


def _start(key, value, state):
    """T and z before the first token."""
    if state is not None:
        return state.values.to(key), state.normaliser.to(key)
    batch, heads, _, features = key.shape
    return (
        key.new_zeros(batch, heads, features, value.size(-1)),
        key.new_zeros(batch, heads, features),
    )


def _scaled_keys(key, state, log_decay, key_log_scale, padding):
    """Keys on the scale of the state at their position, which is the largest scale so far.

    The future must not set the scale of the past, whose weights it could make 0; so the scale
    changes on the way, as in online softmax, and each token brings the state to its own.

    Returns:
        key: ``(B, H, N, M)``, in float32 or wider, 0 at padding.
        steps: log of what each token multiplies the state with, ``(B, H, N or 1)``; or None.
        scale: log scale after the last token, or None.
    """
    key = key.to(wide_type(key))
    steps = end = None
    if log_decay is not None:
        steps = log_decay.to(key)[:, None].expand(*key.shape[:2], 1)
    if padding is not None:
        padding = padding[:, None]
        key = key.masked_fill(padding.unsqueeze(-1), 0)
        if steps is not None:
            steps = steps.masked_fill(padding, 0)
    if key_log_scale is not None:
        with torch.no_grad():
            own = key_log_scale.to(key)
            if padding is not None:
                own = own.masked_fill(padding, float("-inf"))
            before = torch.full_like(own[..., :1], float("-inf"))
            if state is not None:
                before = state.log_scale.unsqueeze(-1)
            scale = torch.maximum(own, before).cummax(dim=-1).values
            end = scale[..., -1]
            before = torch.cat((before, scale[..., :-1]), dim=-1)
            change = (scale - before).masked_fill(before.isneginf(), 0)
            steps = -change if steps is None else steps - change
            factor = (own - scale.masked_fill(scale.isneginf(), 0)).exp()
        key = key * factor.unsqueeze(-1)
    return key, steps, end
