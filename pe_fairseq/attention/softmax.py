"""Softmax attention (Vaswani et al. 2017, eq. 1) with any position scheme.

    output_i = Σ_j softmax_j(q_i · k_j / √head_dim + score_ij) (v_j + value_ij)

over the keys j that query i may see; score and value are what positions add by the distance
of i and j. Shapes: query ``(batch, heads, query_len, head_dim)``, key and value ``(batch,
heads, key_len, head_dim)``. Where query_len is less than key_len, the queries are the last
query_len positions of the keys.

Several ways lead to the same output, chosen by what the scheme declares and the call needs
(``LOGLEVEL=DEBUG`` tells which and why): torch's fused kernels where nothing is added; where
positions add by distance, blocks of queries, flex attention on a GPU, or tables for one
query; and the plain formula.
"""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import LayerPositions, Relative
from ..positions.ids import count_tokens
from .blocked import DistanceTerms, blocked_attention
from .choice import Way, choose
from .flex import attend_by_flex, compiled
from .one_query import Tables, longest_served, one_query_attention
from .plain import plain_attention, visible_keys


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Optional[LayerPositions] = None,
    term_query: Optional[Tensor] = None,
    *,
    stride: int = 1,
    causal: bool = False,
    key_padding_mask: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    kept: Optional[dict] = None,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Attend in the fastest way that serves the call.

    Args:
        positions: what a layer adds by distance, or None.
        term_query: the queries that ``positions`` sees, before any query/key map:
            ``(batch, heads, query_len, head_dim)``; None for ``query``.
        stride: the distance of neighbouring tokens.
        causal: a query sees no key after its own position.
        key_padding_mask: bool ``(batch, key_len)``, True at padding, or None.
        attn_mask: scores to add, broadcastable to ``(batch, heads, query_len, key_len)``,
            or None.
        dropout: probability of dropping an attention weight.
        need_weights: also return the weights, before dropout.
        kept: a dict that comes with every call of one incremental decoding, for what can be
            made once; None otherwise.

    Returns:
        output ``(batch, heads, query_len, head_dim)``, and the weights
        ``(batch, heads, query_len, key_len)`` in float32 or wider, or None.
    """
    if positions is not None and not positions.terms:
        positions = None
    if term_query is None:
        term_query = query
    way = choose(
        query,
        positions,
        causal=causal,
        padding=key_padding_mask,
        attn_mask=attn_mask,
        dropout=dropout,
        need_weights=need_weights,
        decoding=kept is not None,
    )
    masks = {"causal": causal, "key_padding_mask": key_padding_mask}
    if way is Way.FUSED:
        return _fused(query, key, value, attn_mask=attn_mask, dropout=dropout, **masks), None
    # scores and sums are float32 or wider, whatever autocast is for
    with torch.autocast(query.device.type, enabled=False):
        if way in (Way.BLOCKED, Way.FLEX):
            terms = distance_terms(positions, term_query, key.size(2), stride, causal)
            if way is Way.FLEX:
                return attend_by_flex(
                    query, key, value, terms, kernel=compiled(), **masks
                ), None
            return blocked_attention(query, key, value, terms, dropout=dropout, **masks), None
        if way is Way.ONE_QUERY:
            tables = _tables(kept, positions, term_query, key.size(2), stride)
            return one_query_attention(
                query, key, value, term_query, tables, key_padding_mask=key_padding_mask
            ), None
        relative = None
        if positions is not None:
            counts = count_tokens(key.size(2), key_padding_mask, query.device)
            relative = Relative.of(counts, query.size(2), stride)
        output, weights = plain_attention(
            query,
            key,
            value,
            positions,
            relative,
            term_query,
            attn_mask=attn_mask,
            dropout=dropout,
            **masks,
        )
        return output, weights if need_weights else None


def _tables(kept, positions, query, key_len, stride):
    """The tables in ``kept``, made anew when the prefix has outgrown them."""
    tables = kept.get("tables")
    if tables is None or tables.longest < key_len:
        longest = longest_served(key_len)
        terms = distance_terms(positions, query, longest, stride, causal=True)
        tables = kept["tables"] = Tables.of(terms, longest)
    return tables


def _fused(query, key, value, *, causal, key_padding_mask, attn_mask, dropout):
    """torch's ``scaled_dot_product_attention``."""
    query_len, key_len = query.size(2), key.size(2)
    if causal and query_len == key_len and key_padding_mask is None and attn_mask is None:
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
    mask = visible_keys(query_len, key_len, causal, key_padding_mask, query.device)
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype)
        mask = attn_mask if mask is None else attn_mask.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)


def distance_terms(positions, query, key_len, stride, causal):
    """What ``positions`` adds, for each distance that occurs."""
    if positions is None:
        return DistanceTerms()
    bias = key_vectors = value_vectors = None
    if positions.biases:
        steps = torch.arange(1 - query.size(2), key_len, device=query.device)
        bias = sum(term.per_distance(stride * steps) for term in positions.biases)
    vectors = positions.vectors
    if vectors is not None:
        reach = key_len - 1
        if vectors.clip is not None:
            reach = min(reach, -(-vectors.clip // stride))
        reach = max(reach, 1)
        near = stride * torch.arange(0 if causal else -reach, reach + 1, device=query.device)
        key_vectors = vectors.key_vectors(near)
        if vectors.adds_to_values:
            value_vectors = vectors.value_vectors(near)
    return DistanceTerms(bias, query, key_vectors, value_vectors)
