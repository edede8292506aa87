"""Softmax attention in blocks of queries, with terms by distance and a backward of its own.

    score_ij = (q_i · k_j + u_i · key_m) / √head_dim + bias_m
    output_i = Σ_j dropout(softmax_j(score_ij)) (v_j + value_m),   m = i − j

u is the query before any query/key map. The scores of one block of queries exist at a time, in
the backward pass too, which computes them again: nothing of shape (heads, query_len,
key_len) is kept (as in Dao et al. 2022, §3.1).

What a pair gets by its distance is made once per distance and spread over the pairs by a
shifted view, with no index (``Band``). Beyond ``reach`` all distances share one vector. A
softmax ignores what all scores of a row have in common, so key vectors are taken relative to
that of the far past, and only keys nearer than ``reach`` are touched. Value vectors likewise,
with that of the far past added to v.

Shapes: B batch, H heads, Q query_len, K key_len, D head_dim.
"""

from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import Band, Layout, Scratch
from .plain import wide_type

# Weights below this are 0. exp() of a strong bias leaves denormal numbers, with which
# products take many times as long; float32 loses such a weight in any sum.
SMALLEST_WEIGHT = 1e-30


@dataclass(frozen=True)
class DistanceTerms:
    """What pairs of a query and a key get by their distance.

    Attributes:
        bias: added to the scores: ``(H, Q + K − 1)``, for the distances 1 − Q … K − 1.
        query: the queries that meet the key vectors: ``(B, H, Q, D)``.
        key_vectors: ``(R, D)`` or ``(H, R, D)``, for the distances −reach … reach, or, if
            causal, 0 … reach, with reach ≥ 1; those beyond share the outermost ones.
        value_vectors: likewise, added to the values.
    """

    bias: Optional[Tensor] = None
    query: Optional[Tensor] = None
    key_vectors: Optional[Tensor] = None
    value_vectors: Optional[Tensor] = None


def blocked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: DistanceTerms = DistanceTerms(),
    *,
    causal: bool = False,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend, outside autocast. Half precision is computed in float32.

    Args:
        query, key, value, causal, key_padding_mask, dropout: as in ``softmax_attention``.
        terms: what is added by distance, which is that of the columns: with padding, the
            real tokens of a row must stand together.

    Returns:
        output ``(B, H, Q, D)``.
    """
    wide = wide_type(query)
    batch, heads, query_len, _ = query.shape
    layout = Layout(batch, heads, query_len, key.size(2), causal, key_padding_mask)
    scale = query.size(-1) ** -0.5
    q = (query.to(wide) * scale).flatten(0, 1)
    value, far_past = value.to(wide), None
    bias = term_query = key_vectors = value_vectors = None
    if terms.bias is not None:
        bias = _bias_of_blocks(layout, terms.bias.to(wide))
    if terms.key_vectors is not None:
        term_query = q
        if terms.query is not query:
            term_query = (terms.query.to(wide) * scale).flatten(0, 1)
        key_vectors = falling(terms.key_vectors.to(wide))
    if terms.value_vectors is not None:
        value_vectors = terms.value_vectors.to(wide)
        far_past = value_vectors[..., -1:, :]
        if dropout:
            value = value + far_past
        value_vectors = falling(value_vectors)
    k, v = key.to(wide).flatten(0, 1), value.flatten(0, 1)
    inputs = Inputs(q, k, v, term_query, bias, key_vectors, value_vectors)
    # from the global generator: a recomputed forward pass draws it again
    seed = int(torch.randint(2**62, ())) if dropout else 0
    output = BlockedAttention.apply(layout, dropout, seed, *inputs)
    output = output.unflatten(0, (batch, heads))
    if far_past is not None and not dropout:  # the weights of a row sum to 1
        output = output + far_past
    return output.to(query.dtype)


def falling(vectors):
    """Vectors ``(…, R, D)`` in falling order of distance, relative to the first."""
    return (vectors - vectors[..., -1:, :]).flip(-2)


def _bias_of_blocks(layout, bias):
    """One tensor ``(H, rows, Q + K − 1)`` of which the bias of every block is a slice.

    Row i is the bias in falling order of distance, i columns further right than row 0; -inf
    where a causal query would look ahead.
    """
    rows, width = layout.rows, bias.size(-1)
    falling = F.pad(bias.flip(-1), (rows - 1, 0))
    shifted = falling.unfold(-1, width, 1).flip(1)
    if not layout.causal:
        return shifted.contiguous()
    column = torch.arange(width, device=bias.device)
    row = torch.arange(rows, device=bias.device).unsqueeze(1)
    return shifted.masked_fill(column > layout.key_len - 1 + row, float("-inf"))


class Inputs(NamedTuple):
    """The tensors of one call, all of one floating type.

    Attributes:
        q, term_query: ``(B·H, Q, D)``, divided by √D.
        k, v: ``(B·H, K, D)``.
        bias: of all blocks, ``(H, rows, Q + K − 1)``, or None.
        key_vectors, value_vectors: ``(R, D)`` or ``(H, R, D)`` as ``Band`` has them, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    term_query: Optional[Tensor]
    bias: Optional[Tensor]
    key_vectors: Optional[Tensor]
    value_vectors: Optional[Tensor]


class BlockedAttention(torch.autograd.Function):
    """``blocked_attention`` on ``Inputs``."""

    @staticmethod
    def forward(ctx, layout, dropout, seed, *inputs):
        given = Inputs(*inputs)
        given = given._replace(k=given.k.contiguous(), v=given.v.contiguous())
        output = _length_first(given.q)
        scratch = Scratch(given.q)
        mask = DropoutMask(dropout, seed, scratch)
        for block in layout.blocks():
            weights = mask.drop(_weights(block, given, scratch))
            attended = scratch("attended", len(weights), block.rows, output.size(-1))
            torch.bmm(weights, given.v[:, : block.key_len], out=attended)
            if given.value_vectors is not None:
                band = Band(block, given.value_vectors, scratch)
                attended += band.combine(band.sums(weights), given.value_vectors)
            output[:, block.queries] = attended
        ctx.layout, ctx.dropout, ctx.seed = layout, dropout, seed
        ctx.save_for_backward(*given, output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "blocked attention has no second derivative; need_weights=True takes the "
                "plain formula, which has"
            )
        *inputs, output = ctx.saved_tensors
        given = Inputs(*inputs)
        grads = Inputs(
            q=_length_first(given.q),
            k=torch.zeros_like(given.k),
            v=torch.zeros_like(given.v),
            term_query=None if given.term_query is None else _length_first(given.term_query),
            **{
                name: torch.zeros_like(getattr(given, name)) if needed else None
                for name, needed in zip(Inputs._fields[4:], ctx.needs_input_grad[7:])
            },
        )
        scratch = Scratch(given.q)
        mask = DropoutMask(ctx.dropout, ctx.seed, scratch)
        with torch.autocast(output.device.type, enabled=False):
            for block in ctx.layout.blocks():
                _backward_of(block, given, grads, output, grad_output, mask, scratch)
        return None, None, None, *grads


def _length_first(x):
    """An empty tensor like ``x`` ``(B·H, length, D)`` that lies in memory as ``(length, B·H,
    D)``, which is how projections want it."""
    count, length, dim = x.shape
    return x.new_empty(length, count, dim).transpose(0, 1)


def _weights(block, given, scratch):
    """The attention weights ``(B·H, rows, keys)`` of a block, before dropout."""
    layout = block.layout
    scores = scratch("scores", len(given.q), block.rows, block.key_len)
    torch.bmm(given.q[:, block.queries], given.k[:, : block.key_len].mT, out=scores)
    if given.key_vectors is not None:
        band = Band(block, given.key_vectors, scratch)
        band.add_products(scores, given.term_query[:, block.queries], given.key_vectors)
    per_head = scores.view(layout.batch, layout.heads, block.rows, block.key_len)
    if given.bias is not None:
        per_head += given.bias[block.of_bias]
    elif layout.causal:
        ahead = scores.new_full((block.rows, block.rows), float("-inf")).triu_(1)
        scores[..., block.first :] += ahead  # a fraction of the time of masked_fill_
    if layout.padding is not None:
        own = scores.diagonal(block.first, dim1=1, dim2=2)
        kept = own.clone()
        padding = layout.padding[:, None, None, : block.key_len]
        per_head.masked_fill_(padding, float("-inf"))
        own.copy_(kept)
    weights = torch.softmax(scores, dim=-1, out=scores)
    return weights if given.bias is None else F.threshold_(weights, SMALLEST_WEIGHT, 0.0)


def _backward_of(block, given, grads, output, grad_output, mask, scratch):
    """Add what a block gives to ``grads``."""
    layout, keys, queries = block.layout, slice(block.key_len), block.queries
    weights = _weights(block, given, scratch)
    grad = scratch("grad", len(weights), block.rows, output.size(-1))
    grad.copy_(grad_output[:, queries])
    kept = mask.drop(weights)
    grads.v[:, keys].baddbmm_(kept.mT, grad)
    grad_scores = scratch("grad scores", *weights.shape)
    torch.bmm(grad, given.v[:, keys].mT, out=grad_scores)
    if given.value_vectors is not None:
        band = Band(block, given.value_vectors, scratch)
        if grads.value_vectors is not None:
            band.add_outer(grads.value_vectors, band.sums(kept), grad)
        band.add_products(grad_scores, grad, given.value_vectors)
    mask.drop_again(grad_scores)

    # a softmax: score's gradient = weight · (weight's gradient − the mean of those)
    mean = (grad * output[:, queries]).sum(-1, keepdim=True)
    grad_scores.sub_(mean).mul_(weights)

    grad_query = scratch("grad query", *grad.shape)
    grads.q[:, queries] = torch.bmm(grad_scores, given.k[:, keys], out=grad_query)
    grads.k[:, keys].baddbmm_(grad_scores.mT, given.q[:, queries])
    if grads.bias is not None:
        per_head = grad_scores.view(layout.batch, layout.heads, block.rows, block.key_len)
        grads.bias[block.of_bias] += per_head.sum(0)
    if given.key_vectors is not None:
        band = Band(block, given.key_vectors, scratch)
        sums = band.sums(grad_scores)
        grads.term_query[:, queries] = band.combine(sums, given.key_vectors)
        if grads.key_vectors is not None:
            band.add_outer(grads.key_vectors, sums, given.term_query[:, queries])


class DropoutMask:
    """Factors 0 or 1 / (1 − p) for the weights of one block after the other.

    The same ``seed`` gives the same factors again, so the backward pass keeps none.
    """

    def __init__(self, p, seed, scratch):
        self.p = p
        self.scratch = scratch
        self.factors = None
        if p:
            self.generator = torch.Generator(scratch.like.device).manual_seed(seed)

    def drop(self, weights):
        """Draw the next factors, and return ``weights`` with them."""
        if not self.p:
            return weights
        self.factors = self.scratch("factors", *weights.shape)
        self.factors.bernoulli_(1 - self.p, generator=self.generator)
        if self.p < 1:
            self.factors /= 1 - self.p
        return torch.mul(weights, self.factors, out=self.scratch("kept", *weights.shape))

    def drop_again(self, weights):
        """Multiply ``weights`` by the factors drawn last."""
        if self.p:
            weights *= self.factors
