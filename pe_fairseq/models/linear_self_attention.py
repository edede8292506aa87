"""Self-attention on linear attention: a state of fixed size in place of keys and values."""

from typing import Optional

import torch
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from ..attention.features import FeatureMap
from ..attention.fla import fla_serves
from ..attention.linear import SMALLEST_SUM, State, chunked, recurrent, two_sided
from ..attention.spec import Performer
from ..positions import LayerPositions, PositionIds
from .self_attention import SelfAttention
from .self_attention import State as IncrementalState


class LinearSelfAttention(SelfAttention):
    """Multi-head linear self-attention (Performer; PermuteFormer where positions permute).

    Parameter names are those of ``SelfAttention``. The incremental state is of fixed size and
    has the batch in front everywhere, so that fairseq's beam search reorders it.

    Args:
        linear: the options of linear attention.

    Attributes:
        feature_map: of queries and keys; the decoder sets it.
    """

    def __init__(self, *args, linear: Performer, **kwargs):
        super().__init__(*args, **kwargs)
        self.linear = linear
        self.feature_map: Optional[FeatureMap] = None
        if linear.width > 1:
            for name in ("q_proj", "k_proj"):
                wide = nn.Linear(self.embed_dim, linear.width * self.embed_dim)
                nn.init.xavier_uniform_(wide.weight, gain=2**-0.5)
                noise = kwargs.get("q_noise", 0.0), kwargs.get("qn_block_size", 8)
                setattr(self, name, quant_noise(wide, *noise))

    def set_positions(self, positions: LayerPositions, position_ids: PositionIds):
        """Give the layer its part of a position scheme.

        Raises:
            ValueError: it adds to scores, which linear attention never forms.
        """
        if len(positions.terms):
            raise ValueError("linear attention has no scores to add to")
        self.positions = positions
        self.position_ids = position_ids

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ):
        """Attend from ``query`` to itself and to what the state holds.

        Arguments and result are those of ``SelfAttention``, without weights and masks: linear
        attention forms no weight.

        Raises:
            ValueError: weights, an ``attn_mask``, ``static_kv`` or ``before_softmax``.
        """
        if static_kv or before_softmax:
            raise ValueError("self-attention takes neither static_kv nor before_softmax")
        if need_weights or need_head_weights or attn_mask is not None:
            raise ValueError("linear attention forms no weights: none to return or to mask")
        length, batch, _ = query.shape
        q = self._split_heads(self.q_proj(query))
        k = self._split_heads(self.k_proj(query))
        v = self._split_heads(self.v_proj(query))
        padding = None if key_padding_mask is None else key_padding_mask.bool()
        with torch.autocast(query.device.type, enabled=False):
            output = self._attend(q, k, v, padding, incremental_state)
        output = output.to(query.dtype).permute(2, 0, 1, 3)
        return self.out_proj(output.reshape(length, batch, self.embed_dim)), None

    def _attend(self, q, k, v, padding, incremental_state):
        q, (k, log_scale) = self.feature_map.query(q), self.feature_map.key(k)
        options = {"key_log_scale": log_scale, "key_padding_mask": padding}
        held = self._get_input_buffer(incremental_state)
        seen = held.get("count")
        query_key_map = None if self.positions is None else self.positions.query_key_map
        log_decay = powers = None
        if self.positions is not None and self.positions.log_decay is not None:
            log_decay = self.positions.log_decay * self.position_ids.stride
            log_decay = log_decay.to(q.device)
        if self.causal and padding is None and not held and query_key_map is not None:
            # flash-linear-attention takes features that are permuted already
            if not fla_serves(q, v, log_decay, log_scale, padding):
                powers = query_key_map.powers(self.position_ids.stride)
        turned, keeps_sign = (q, k), True
        if query_key_map is not None and powers is None:
            counts = _count_tokens(q, padding, seen)
            prepared = query_key_map.prepare(self.position_ids.of(counts))
            turned, keeps_sign = query_key_map(q, k, prepared), query_key_map.keeps_sign
        if not self.causal:
            return self._two_sided(turned, (q, k), v, keeps_sign, options)
        options["log_decay"] = log_decay
        if powers is not None:
            normalize = self.linear.normalize
            output, state = chunked(q, k, v, powers=powers, normalize=normalize, **options)
        else:
            state = None
            if held:
                state = State(held["values"], held["normaliser"], held.get("log_scale"))
            output, state = self._causal(turned, (q, k), v, state, keeps_sign, options)
        if incremental_state is not None:
            if powers is not None:
                state = self._placed(state, q.size(2))
            kept = {"values": state.values, "normaliser": state.normaliser}
            if state.log_scale is not None:
                kept["log_scale"] = state.log_scale
            new = _count_new(q, padding)
            self._set_input_buffer(
                incremental_state, {**kept, "count": new if seen is None else seen + new}
            )
        return output

    def _placed(self, state, tokens):
        """The state that permuted tokens would have left, of one that counts from its place."""
        query_key_map, position = self.positions.query_key_map, self.position_ids.of(tokens)
        values = query_key_map.placed(state.values, position)
        normaliser = query_key_map.placed(state.normaliser.unsqueeze(-1), position).squeeze(-1)
        return state._replace(values=values, normaliser=normaliser)

    def _causal(self, turned, plain, v, state, keeps_sign, options):
        attend = recurrent if v.size(2) == 1 and not torch.is_grad_enabled() else chunked
        if keeps_sign or not self.linear.normalize:
            return attend(*turned, v, state, normalize=self.linear.normalize, **options)
        ones = v.new_ones(*v.shape[:-1], 1, dtype=plain[0].dtype)
        of_sum = None
        if state is not None:
            of_sum = State(state.normaliser.unsqueeze(-1), state.normaliser, state.log_scale)
        top, after = attend(*turned, v.to(ones), state, normalize=False, **options)
        total, sum_after = attend(*plain, ones, of_sum, normalize=False, **options)
        state = State(after.values, sum_after.normaliser, after.log_scale)
        return top / total.clamp(min=SMALLEST_SUM), state

    def _two_sided(self, turned, plain, v, keeps_sign, options):
        if keeps_sign or not self.linear.normalize:
            return two_sided(*turned, v, normalize=self.linear.normalize, **options)
        ones = v.new_ones(*v.shape[:-1], 1, dtype=plain[0].dtype)
        top = two_sided(*turned, v.to(ones), normalize=False, **options)
        total = two_sided(*plain, ones, normalize=False, **options)
        return top / total.clamp(min=SMALLEST_SUM)

    def _split_heads(self, x):
        """``(len, batch, any)`` to ``(batch, heads, len, any / heads)``."""
        length, batch, _ = x.shape
        return x.view(length, batch, self.num_heads, -1).permute(1, 2, 0, 3)


def _count_new(q, padding):
    """How many real tokens there are: ``(B,)``."""
    if padding is None:
        return torch.full((q.size(0),), q.size(2), device=q.device)
    return (~padding).sum(1)


def _count_tokens(q, padding, seen):
    """How many real tokens stand before each new one: ``(1 or B, L)``."""
    if padding is None:
        counts = torch.arange(q.size(2), device=q.device).unsqueeze(0)
    else:
        counts = (~padding).long().cumsum(1) - 1
    if seen is not None:
        counts = counts + seen.unsqueeze(1)
    return counts.clamp(min=0)
