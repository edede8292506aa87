"""Softmax attention (Vaswani et al. 2017, eq. 1).

    output_i = Σ_j softmax_j(q_i · k_j / √head_dim + b_ij) v_j

over the keys j that query i may see; positions may add scores b and, to the output, what
they make of the weights. Shapes: query ``(batch, heads, query_len,
head_dim)``, key and value ``(batch, heads, key_len, head_dim)``. Where query_len is
less than key_len, the queries are the last query_len positions of the keys.
"""

from typing import Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor


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


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    key_padding_mask: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    value_term: Optional[Callable[[Tensor], Tensor]] = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Attend, by torch's fused kernels unless the weights themselves are needed.

    Args:
        causal: a query sees no key after its own position.
        key_padding_mask: bool ``(batch, key_len)``, True at padding, or None.
        attn_mask: scores b, added, broadcastable to
            ``(batch, heads, query_len, key_len)``, or None.
        value_term: maps the weights after dropout ``(batch, heads, query_len, key_len)``
            to what is added to the output, or None.
        dropout: probability of dropping an attention weight.
        need_weights: also return the weights, before dropout.

    Returns:
        output ``(batch, heads, query_len, head_dim)``, and the weights
        ``(batch, heads, query_len, key_len)`` in float32 or wider, or None.
    """
    query_len, key_len = query.size(2), key.size(2)
    if (
        causal
        and query_len == key_len
        and key_padding_mask is None
        and attn_mask is None
        and value_term is None
        and not need_weights
    ):
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        ), None

    seen = visible_keys(query_len, key_len, causal, key_padding_mask, query.device)
    if not need_weights and value_term is None:
        mask = seen if attn_mask is None else attn_mask.to(query.dtype)
        if attn_mask is not None and seen is not None:
            mask = mask.masked_fill(~seen, float("-inf"))
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        ), None

    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * query.size(-1) ** -0.5) @ key.to(wide).transpose(-2, -1)
    if attn_mask is not None:
        scores = scores + attn_mask
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(dim=-1)
    kept = F.dropout(weights, p=dropout)
    output = kept.to(value.dtype) @ value
    if value_term is not None:
        output = output + value_term(kept).to(value.dtype)
    return output, weights if need_weights else None
