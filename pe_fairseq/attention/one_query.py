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
from .plain import visible_keys, wide_type

STEPS = 128


@dataclass(frozen=True)
class Tables:
    """What positions add, in falling order of distance down to 0; each may be None.

    Attributes:
        longest: the longest prefix that they serve.
        bias: ``(H, 1, longest)``.
        key_vectors, value_vectors: ``(R, D)`` or ``(H, R, D)``, relative to the first of them,
            which all distances from R on share too.
        far_past: the first value vector, ``(1, D)`` or ``(H, 1, D)``.
    """

    longest: int
    bias: Optional[Tensor]
    key_vectors: Optional[Tensor]
    value_vectors: Optional[Tensor]
    far_past: Optional[Tensor]

    @staticmethod
    def of(terms: DistanceTerms, longest: int) -> "Tables":
        """Lay out the terms of one causal query and ``longest`` keys."""
        bias, keys, values = (
            None if term is None else term.to(wide_type(terms.query))
            for term in (terms.bias, terms.key_vectors, terms.value_vectors)
        )
        return Tables(
            longest,
            None if bias is None else bias.flip(-1).unsqueeze(1),
            None if keys is None else falling(keys),
            None if values is None else falling(values),
            None if values is None else values[..., -1:, :],
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
    given, wide = query.dtype, wide_type(query)
    query, key, value, term_query = (x.to(wide) for x in (query, key, value, term_query))
    key_len, scale = key.size(2), query.size(-1) ** -0.5
    scores = torch.matmul(query, key.mT).mul_(scale)
    if tables.bias is not None:
        scores += tables.bias[..., -key_len:]
    if tables.key_vectors is not None:
        vectors = tables.key_vectors[..., -key_len:, :]
        products = torch.matmul(term_query, vectors.mT)
        scores[..., -products.size(-1) :].add_(products, alpha=scale)
    if key_padding_mask is not None:
        seen = visible_keys(1, key_len, True, key_padding_mask, query.device)
        scores.masked_fill_(~seen, float("-inf"))
    weights = scores.softmax(dim=-1)
    output = torch.matmul(weights, value)
    if tables.value_vectors is not None:
        vectors = tables.value_vectors[..., -key_len:, :]
        output += torch.matmul(weights[..., -vectors.size(-2) :], vectors)
        output += tables.far_past
    return output.to(given)
