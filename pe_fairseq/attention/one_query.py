"""Softmax attention of the newest token alone, as incremental decoding asks for it.

The keys of one query stand in falling order of distance, so what positions add by distance is
added as it stands. It is the same for every token, and its end serves a shorter prefix: tables
are made once for many steps.

Shapes: B batch, H heads, K key_len, D head_dim; R distances of a table.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from .blocked import DistanceTerms, falling
from .plain import visible_keys

STEPS = 128


@dataclass(frozen=True)
class Tables:
    """What positions add, in falling order of distance down to 0; each may be None.

    Attributes:
        longest: the longest prefix that they serve.
        bias: ``(H, 1, longest)``.
        key_vectors, value_vectors: ``(1 or H, R, D)``, relative to the first of them, which
            all distances from R on share too.
        far_past: the first value vector, ``(1 or H, 1, D)``.
    """

    longest: int
    bias: Optional[Tensor]
    key_vectors: Optional[Tensor]
    value_vectors: Optional[Tensor]
    far_past: Optional[Tensor]

    @staticmethod
    def of(terms: DistanceTerms, longest: int) -> "Tables":
        """Lay out the terms of one causal query and ``longest`` keys."""
        bias, values = terms.bias, terms.value_vectors
        return Tables(
            longest,
            None if bias is None else bias.flip(-1).unsqueeze(1),
            None if terms.key_vectors is None else falling(terms.key_vectors.float()),
            None if values is None else falling(values.float()),
            None if values is None else values[..., -1:, :].float(),
        )


def longest_served(key_len: int) -> int:
    """How long a prefix tables should serve that are made for ``key_len`` keys."""
    return -(-key_len // STEPS) * STEPS


def one_query_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    term_query: Tensor,
    tables: Tables,
    *,
    key_padding_mask: Optional[Tensor] = None,
) -> Tensor:
    """Attend from one query, ``(B, H, 1, D)``, in float32 or wider, without dropout.

    Args:
        key_padding_mask: as in ``softmax_attention``; real tokens of a row stand together.

    Returns:
        output ``(B, H, 1, D)``.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    key_len, scale = key.size(2), query.size(-1) ** -0.5
    scores = (query.to(wide) * scale) @ key.to(wide).mT
    if tables.bias is not None:
        scores += tables.bias[..., -key_len:]
    if tables.key_vectors is not None:
        vectors = tables.key_vectors[:, -key_len:].to(wide)
        scores[..., -vectors.size(1) :] += (term_query.to(wide) * scale) @ vectors.mT
    if key_padding_mask is not None:
        seen = visible_keys(1, key_len, True, key_padding_mask, query.device)
        scores.masked_fill_(~seen, float("-inf"))
    weights = scores.softmax(dim=-1)
    output = weights @ value.to(wide)
    if tables.value_vectors is not None:
        vectors = tables.value_vectors[:, -key_len:].to(wide)
        output += weights[..., -vectors.size(1) :] @ vectors
        output += tables.far_past
    return output.to(query.dtype)
