"""fairseq's self-attention module on our attention: same parameters, same states."""

from typing import Dict, Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from ..attention import softmax_attention
from ..positions import LayerPositions, PositionIds
from ..positions.ids import count_tokens

State = Dict[str, Dict[str, Optional[Tensor]]]


class SelfAttention(MultiheadAttention):
    """Multi-head self-attention (Vaswani et al. 2017, §3.2.2).

    Parameter names, initialisation and incremental state are those of fairseq's
    ``MultiheadAttention``, so its checkpoints load and its beam search reorders the
    state. Unlike it, one call may bring any number of new positions beside a state,
    and a state may hold left-padded rows.

    Attributes:
        positions: what a position scheme has for this layer, or None.
        position_ids: the rule for ids, where there are positions.
        causal: a query sees no key after its own position, unless a call brings an
            ``attn_mask``, which then says it all.
    """

    def __init__(self, *args, causal: bool, **kwargs):
        super().__init__(*args, self_attention=True, **kwargs)
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn are not served")
        self.causal = causal
        self.positions: Optional[LayerPositions] = None
        self.position_ids = PositionIds()

    def set_positions(self, positions: LayerPositions, position_ids: PositionIds):
        """Give the layer its part of a position scheme.

        Raises:
            ValueError: it has a decay, which softmax attention does not apply.
        """
        if positions.log_decay is not None:
            raise ValueError("softmax attention applies no decay")
        self.positions = positions
        self.position_ids = position_ids

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[State] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ):
        """Attend from ``query`` to itself and to what the state holds.

        Args:
            query: ``(query_len, batch, embed_dim)``; ``key`` and ``value`` are the
                same tensor or None.
            key_padding_mask: ``(batch, query_len)``, True at padding, or None.
            incremental_state: keys and values of earlier calls; this call's are added.
            need_weights: return the weights, averaged over heads.
            attn_mask: added to the scores instead of the causal rule, broadcastable to
                ``(query_len, key_len)``.
            need_head_weights: return the weights of each head.

        Returns:
            output ``(query_len, batch, embed_dim)``; and None, or weights ``(batch,
            query_len, key_len)``, or ``(heads, batch, query_len, key_len)``.

        Raises:
            ValueError: ``static_kv`` or ``before_softmax``, which have no meaning here.
        """
        if static_kv or before_softmax:
            raise ValueError("self-attention takes neither static_kv nor before_softmax")
        query_len, batch, _ = query.shape
        q = self._split_heads(self.q_proj(query))
        k = self._split_heads(self.k_proj(query))
        v = self._split_heads(self.v_proj(query))
        state = self._get_input_buffer(incremental_state)
        padding = _all_padding(state, key_padding_mask, k)
        term_query = q
        if self.positions is not None and self.positions.query_key_map is not None:
            held = state["prev_key"].size(2) if state else 0
            prepared = self._prepare_map(held, query_len, padding, q, incremental_state)
            q, k = self.positions.query_key_map(q, k, prepared)
        if state:
            k = torch.cat([state["prev_key"], k], dim=2)
            v = torch.cat([state["prev_value"], v], dim=2)
        if incremental_state is not None:
            self._set_input_buffer(
                incremental_state,
                {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding},
            )
        kept = None
        if incremental_state is not None and self.positions is not None:
            kept = incremental_state.setdefault("tables", {}).setdefault(id(self), {})
        dropout = self.dropout_module
        output, weights = softmax_attention(
            q,
            k,
            v,
            self.positions,
            term_query,
            stride=self.position_ids.stride,
            causal=self.causal and attn_mask is None,
            key_padding_mask=padding,
            attn_mask=attn_mask,
            dropout=dropout.p if self.training or dropout.apply_during_inference else 0.0,
            need_weights=need_weights or need_head_weights,
            kept=kept,
        )
        output = output.permute(2, 0, 1, 3).reshape(query_len, batch, self.embed_dim)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.out_proj(output), weights

    def _prepare_map(self, held, query_len, padding, like, incremental_state):
        """What the map of queries and keys needs for the newest ``query_len`` tokens.

        The layers of one step of incremental decoding share it.
        """
        shared = {} if incremental_state is None else incremental_state
        wanted = (id(self.positions.query_key_map), self.position_ids, held, query_len)
        if shared.get("query_key_map", (None, None))[0] != wanted:
            counts = count_tokens(held + query_len, padding, like.device)[:, held:]
            prepared = self.positions.query_key_map.prepare(self.position_ids.of(counts))
            shared["query_key_map"] = wanted, prepared
        return shared["query_key_map"][1]

    def _split_heads(self, x):
        """``(len, batch, embed_dim)`` to ``(batch, heads, len, head_dim)``."""
        length, batch, _ = x.shape
        return x.view(length, batch, self.num_heads, self.head_dim).permute(1, 2, 0, 3)


def _all_padding(state, new_mask, new_key):
    """The padding mask ``(batch, key_len)`` of earlier and new keys; None without padding."""
    earlier_mask = state.get("prev_key_padding_mask")
    if new_mask is None and earlier_mask is None:
        return None
    batch, _, new, _ = new_key.shape
    if new_mask is None:
        new_mask = earlier_mask.new_zeros(batch, new)
    new_mask = new_mask.bool()
    if not state:
        return new_mask
    if earlier_mask is None:
        earlier_mask = new_mask.new_zeros(batch, state["prev_key"].size(2))
    return torch.cat([earlier_mask, new_mask], dim=1)
