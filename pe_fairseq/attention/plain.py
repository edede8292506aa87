"""Softmax attention as its formula stands: the reference, and whatever no kernel serves."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import LayerPositions, Relative


def wide_type(x: Tensor) -> torch.dtype:
    """The type to compute scores in: float32, or wider where ``x`` is."""
    return torch.promote_types(x.dtype, torch.float32)


def visible_keys(
    query_len: int,
    key_len: int,
    causal: bool,
    key_padding_mask: Optional[Tensor],
    device=None,
) -> Optional[Tensor]:
    """Which keys each query may see, or None where it sees all of them.

    A query always sees its own position, so that the rows of padding tokens, which
    may see no other, stay finite; nothing reads them.

    Args:
        causal: hide keys that come after the query.
        key_padding_mask: ``(batch, key_len)``, True at padding, or None.

    Returns:
        bool ``(1 or batch, 1, query_len, key_len)``, True where a key is seen.
    """
    first = key_len - query_len
    seen = None
    if causal and query_len > 1:
        seen = torch.ones(query_len, key_len, dtype=torch.bool, device=device)
        seen = seen.tril(first)[None, None]
    if key_padding_mask is not None:
        own = torch.eye(query_len, key_len, dtype=torch.bool, device=device)
        real = ~key_padding_mask[:, None, None, :]
        seen = (real if seen is None else seen & real) | own.roll(first, dims=1)
    return seen


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Optional[LayerPositions] = None,
    relative: Optional[Relative] = None,
    term_query: Optional[Tensor] = None,
    *,
    causal: bool = False,
    key_padding_mask: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tuple[Tensor, Tensor]:
    """Attend with all scores at once. See ``softmax_attention`` for the arguments.

    Args:
        relative: the distances of all pairs, where ``positions`` has terms.

    Returns:
        output ``(batch, heads, query_len, head_dim)``, and the weights before dropout
        ``(batch, heads, query_len, key_len)`` in float32 or wider.
    """
    wide = wide_type(query)
    scores = (query.to(wide) * query.size(-1) ** -0.5) @ key.to(wide).transpose(-2, -1)
    if relative is not None:
        scores = scores + positions.score(term_query, relative)
    if attn_mask is not None:
        scores = scores + attn_mask
    seen = visible_keys(query.size(2), key.size(2), causal, key_padding_mask, query.device)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(dim=-1)
    kept = F.dropout(weights, p=dropout)
    output = kept.to(value.dtype) @ value
    if relative is not None and positions.adds_to_values:
        output = output + positions.value(kept, relative).to(value.dtype)
    return output, weights
