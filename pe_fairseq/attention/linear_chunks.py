"""Causal linear attention by chunks, with a backward pass of its own.

Positions a and b of a chunk of C tokens; T and z are the state before it, and c_a the log of
what the steps from the chunk's start to a multiply the state with:

    A_ab = exp(c_a − c_b) q_a · k_b   (b ≤ a)
    numerator = A v + exp(c) q T,   denominator = A 1 + exp(c) q z
    next T = exp(c_C) T + Σ_b exp(c_C − c_b) k_b v_bᵀ,   next z likewise with 1 for v

Backward, from the last chunk to the first, G and h are the gradients of T and z after the
chunk, g and e those of numerator and denominator:

    B = (g vᵀ + e 1ᵀ) ∘ exp(c_a − c_b)   (b ≤ a)
    dq = B k + exp(c) (g Tᵀ + e zᵀ)
    dk = Bᵀ q + exp(c_C − c) (v Gᵀ + h)
    dv = Aᵀ g + exp(c_C − c) k G
    previous G = exp(c_C) G + Σ_a exp(c_a) q_a g_aᵀ,   previous h likewise with e for g

Where each token permutes features once more, (P x)[m] = x[π(m)], the q_a and k_a above are
P^a q_a and P^a k_a, and the next T and z are P^(−C) of what stands there: a chunk counts from
its own start, so that one table of powers serves all chunks.

A and the state before each chunk are kept, C + M · (D + 1) / C numbers for a token.

Shapes: B batch, H heads, N length, C tokens of a chunk, M features, D head_dim.
"""

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor

CHUNK = 64


class Powers(NamedTuple):
    """Powers of the permutation that each token adds, for a chunk and the token after it.

    (P^a x)[m] = x[forth[a, m]] and (P^(−a) x)[m] = x[back[a, m]], a = 0 … C.

    Attributes:
        forth, back: ``(H, C + 1, M)``, int64.
    """

    forth: Tensor
    back: Tensor


class CausalChunks(torch.autograd.Function):
    """Features and values to outputs, from one state to the next.

    Args:
        q, k: features ``(X, N, M)``, in float32 or wider.
        v: ``(X, N, D)``.
        steps: log of what each token multiplies the state with, ``(X, N)``, or ``(X, 1)`` where
            it is the same for all; None for no change. It has no gradient.
        values, normaliser: T ``(X, M, D)`` and z ``(X, M)``.
        smallest: what the denominator is at least; None for outputs that are not divided.
        powers: of the permutation that each token adds; None where none does.

    Returns:
        output ``(X, N, D)``, T and z after the last token.
    """

    @staticmethod
    def forward(ctx, q, k, v, steps, values, normaliser, smallest, powers):
        factors = Factors(steps, q)
        turns = None if powers is None else Turns(powers, q.size(0))
        has_gradient = any(ctx.needs_input_grad)
        output = torch.empty_like(v)
        denominators = None if smallest is None else v.new_empty(*v.shape[:2], 1)
        normaliser = normaliser.unsqueeze(1)
        kept = []
        for tokens in chunks(q.size(1)):
            f = factors.of(tokens)
            q_c, k_c, v_c = q[:, tokens], k[:, tokens], v[:, tokens]
            if turns is not None:
                q_c, k_c = turns.forth(q_c), turns.forth(k_c)
            weights = torch.bmm(q_c, k_c.mT).mul_(f.inside)
            if has_gradient:
                kept += [q_c, k_c, weights, values, normaliser]
            numerator = _times(torch.bmm(q_c, values), f.from_start).baddbmm_(weights, v_c)
            if smallest is not None:
                total = _times((q_c * normaliser).sum(-1, keepdim=True), f.from_start)
                total = total + weights.sum(-1, keepdim=True)
                denominators[:, tokens] = total
                numerator /= total.clamp_(min=smallest)
            output[:, tokens] = numerator
            values = _fresh(values, f.whole).baddbmm_(k_c.mT, _times(v_c, f.to_end))
            normaliser = _fresh(normaliser, f.whole).add_(_sum(k_c, f.to_end))
            if turns is not None:
                values, normaliser = turns.onward(values, normaliser, k_c.size(1))
        ctx.save_for_backward(v, output, denominators, steps, *kept)
        ctx.like = torch.empty_like(q, device="meta"), torch.empty_like(k, device="meta")
        ctx.turns, ctx.smallest = turns, smallest
        return output, values, normaliser.squeeze(1)

    @staticmethod
    def backward(ctx, grad_output, grad_values, grad_normaliser):
        if torch.is_grad_enabled():
            raise RuntimeError("linear attention by chunks has no second derivative")
        v, output, denominators, steps, *kept = ctx.saved_tensors
        factors, turns = Factors(steps, v), ctx.turns
        dq, dk = (torch.empty_like(x, device=v.device) for x in ctx.like)
        dv = torch.empty_like(v)
        grad_normaliser = grad_normaliser.unsqueeze(1)
        for number, tokens in reversed(list(enumerate(chunks(v.size(1))))):
            q_c, k_c, weights, values, normaliser = kept[5 * number : 5 * number + 5]
            f = factors.of(tokens)
            v_c, g = v[:, tokens], grad_output[:, tokens]
            if turns is not None:
                grad_values, grad_normaliser = turns.onward(
                    grad_values, grad_normaliser, k_c.size(1), inverse=True
                )
            if ctx.smallest is not None:
                total = denominators[:, tokens]
                g = g / total.clamp(min=ctx.smallest)
                e = (g * output[:, tokens]).sum(-1, keepdim=True).neg_()
                e.masked_fill_(total < ctx.smallest, 0)
            grad_weights = torch.bmm(g, v_c.mT)
            if ctx.smallest is not None:
                grad_weights += e
            grad_weights *= f.inside
            g_state, v_state = _times(g, f.from_start), _times(v_c, f.to_end)
            dq_c = torch.bmm(g_state, values.mT).baddbmm_(grad_weights, k_c)
            dk_c = torch.bmm(v_state, grad_values.mT).baddbmm_(grad_weights.mT, q_c)
            dk_c += _times(grad_normaliser, f.to_end)
            dv_c = _times(torch.bmm(k_c, grad_values), f.to_end)
            dv[:, tokens] = dv_c.baddbmm_(weights.mT, g)
            grad_values = _fresh(grad_values, f.whole).baddbmm_(q_c.mT, g_state)
            grad_normaliser = _fresh(grad_normaliser, f.whole)
            if ctx.smallest is not None:
                e_state = _times(e, f.from_start)
                dq_c.addcmul_(e_state, normaliser)
                grad_normaliser += _sum(q_c, e_state)
            if turns is not None:
                dq_c, dk_c = turns.back(dq_c), turns.back(dk_c)
            dq[:, tokens], dk[:, tokens] = dq_c, dk_c
        return dq, dk, dv, None, grad_values, grad_normaliser.squeeze(1), None, None


def chunks(length) -> List[slice]:
    """The slices of a text of ``length`` tokens."""
    return [slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]


class Turns:
    """Permutes the features of a chunk by ``Powers``, and a state from chunk to chunk.

    Args:
        size: X, batch · heads.
    """

    def __init__(self, powers: Powers, size: int):
        self.powers = powers
        heads, _, self.features = powers.forth.shape
        self.batch_heads = size // heads, heads
        first = torch.arange(size, device=powers.forth.device) * self.features
        self.first = first.unsqueeze(-1)

    def forth(self, x: Tensor) -> Tensor:
        """P^a of the features at each token a of a chunk ``(X, C, M)``."""
        return self._gather(x, self.powers.forth)

    def back(self, x: Tensor) -> Tensor:
        """P^(−a), which takes a gradient back too."""
        return self._gather(x, self.powers.back)

    def _gather(self, x, index):
        x = x.unflatten(0, self.batch_heads)
        return x.gather(-1, index[:, : x.size(2)].expand(x.shape)).flatten(0, 1)

    def onward(self, values, normaliser, tokens, inverse=False):
        """T and z, P^(−C) of them: counted from the next chunk, after C ``tokens``.

        ``inverse`` takes their gradients back.
        """
        powers = self.powers.forth if inverse else self.powers.back
        rows = powers[:, tokens].repeat(self.batch_heads[0], 1) + self.first
        rows = rows.flatten()
        return (
            values.flatten(0, 1).index_select(0, rows).view(values.shape),
            normaliser.flatten().index_select(0, rows).view(normaliser.shape),
        )


class Factor(NamedTuple):
    """What the steps of one chunk multiply with; None for 1.

    Attributes:
        inside: from token b to token a, 0 where b is later: ``(X or 1, C, C)``.
        from_start: from before the chunk to each token: ``(X, C, 1)``.
        to_end: from each token to the last: ``(X, C, 1)``.
        whole: from before the chunk to the last token: ``(X, 1, 1)``.
    """

    inside: Tensor
    from_start: Optional[Tensor] = None
    to_end: Optional[Tensor] = None
    whole: Optional[Tensor] = None


class Factors:
    """The factors of every chunk, made once where they are the same."""

    def __init__(self, steps, like):
        self.steps = steps
        self.like = like
        self.made = {}

    def of(self, tokens: slice) -> Factor:
        size = tokens.stop - tokens.start
        if self.steps is not None and self.steps.size(1) > 1:
            return self._decaying(self.steps[:, tokens])
        if size not in self.made:
            if self.steps is None:
                self.made[size] = Factor(self.like.new_ones(1, size, size).tril_())
            else:
                self.made[size] = self._decaying(self.steps.expand(-1, size))
        return self.made[size]

    @staticmethod
    def _decaying(steps):
        total = steps.cumsum(1).unsqueeze(-1)
        last = total[:, -1:]
        later = torch.ones(steps.size(1), steps.size(1), dtype=torch.bool, device=steps.device)
        inside = (total - total.mT).masked_fill_(later.triu_(1), float("-inf"))
        return Factor(inside.exp_(), total.exp(), (last - total).exp(), last.exp())


def _times(x, factor):
    return x if factor is None else x * factor


def _fresh(x, factor):
    """``x`` times ``factor``, to be changed in place."""
    return x.clone() if factor is None else x * factor


def _sum(features, factor):
    """Σ_a factor_a x_a of features ``(X, C, M)``: ``(X, 1, M)``."""
    if factor is None:
        return features.sum(1, keepdim=True)
    return torch.bmm(factor.mT, features)
