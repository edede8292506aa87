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

The state before each chunk is kept, M · (D + 1) numbers for C tokens; A is made again.

Shapes: X batch · heads, N length, C tokens of a chunk, M features, D head_dim.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

CHUNK = 64


class CausalChunks(torch.autograd.Function):
    """Features and values to outputs, from one state to the next.

    Args:
        q, k: features ``(X, N, M)``, in float32 or wider.
        v: ``(X, N, D)``.
        steps: log of what each token multiplies the state with, ``(X, N)``, or ``(X, 1)`` where
            it is the same for all; None for no change. It has no gradient.
        values, normaliser: T ``(X, M, D)`` and z ``(X, M)``.
        smallest: what the denominator is at least; None for outputs that are not divided.

    Returns:
        output ``(X, N, D)``, T and z after the last token.
    """

    @staticmethod
    def forward(ctx, q, k, v, steps, values, normaliser, smallest):
        factors = Factors(steps, q)
        output = torch.empty_like(v)
        denominators = None if smallest is None else v.new_empty(v.shape[:2])
        # without a gradient, only the last two
        slots = len(chunks(q.size(1))) + 1 if any(ctx.needs_input_grad) else 2
        states = values.new_empty(slots, *values.shape)
        normalisers = normaliser.new_empty(slots, *normaliser.shape)
        states[0], normalisers[0] = values, normaliser
        for number, tokens in enumerate(chunks(q.size(1))):
            values, normaliser = states[number % slots], normalisers[number % slots]
            f = factors.of(tokens)
            q_c, k_c, v_c = q[:, tokens], k[:, tokens], v[:, tokens]
            weights = torch.bmm(q_c, k_c.mT).mul_(f.inside)
            from_start = _times(q_c, f.from_start)
            numerator = torch.baddbmm(torch.bmm(weights, v_c), from_start, values)
            if smallest is not None:
                total = weights.sum(-1)
                total += torch.bmm(from_start, normaliser.unsqueeze(-1)).squeeze(-1)
                denominators[:, tokens] = total
                numerator /= total.clamp_(min=smallest).unsqueeze(-1)
            output[:, tokens] = numerator
            to_end = _times(k_c, f.to_end)
            after = (number + 1) % slots
            torch.baddbmm(_times(values, f.whole), to_end.mT, v_c, out=states[after])
            torch.add(_decayed(normaliser, f.whole), to_end.sum(1), out=normalisers[after])
        ctx.save_for_backward(q, k, v, steps, output, denominators, states, normalisers)
        ctx.smallest = smallest
        return output, states[after].clone(), normalisers[after].clone()

    @staticmethod
    def backward(ctx, grad_output, grad_values, grad_normaliser):
        if torch.is_grad_enabled():
            raise RuntimeError("linear attention by chunks has no second derivative")
        q, k, v, steps, output, denominators, states, normalisers = ctx.saved_tensors
        factors = Factors(steps, q)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for number, tokens in reversed(list(enumerate(chunks(q.size(1))))):
            values, normaliser = states[number], normalisers[number]
            f = factors.of(tokens)
            q_c, k_c, v_c, g = q[:, tokens], k[:, tokens], v[:, tokens], grad_output[:, tokens]
            e = None
            if ctx.smallest is not None:
                total = denominators[:, tokens].unsqueeze(-1)
                g = g / total.clamp(min=ctx.smallest)
                e = -(g * output[:, tokens]).sum(-1, keepdim=True)
                e = e.masked_fill_(total < ctx.smallest, 0)
            weights = torch.bmm(q_c, k_c.mT).mul_(f.inside)
            grad_weights = torch.bmm(g, v_c.mT)
            from_state = torch.bmm(g, values.mT)
            to_state = torch.bmm(v_c, grad_values.mT).add_(grad_normaliser.unsqueeze(1))
            if e is not None:
                grad_weights += e
                from_state += e * normaliser.unsqueeze(1)
            grad_weights *= f.inside
            from_start, to_end = _times(q_c, f.from_start), _times(k_c, f.to_end)
            dq[:, tokens] = torch.baddbmm(_times(from_state, f.from_start), grad_weights, k_c)
            dk[:, tokens] = torch.baddbmm(_times(to_state, f.to_end), grad_weights.mT, q_c)
            dv[:, tokens] = torch.baddbmm(torch.bmm(weights.mT, g), to_end, grad_values)
            grad_values = torch.baddbmm(_times(grad_values, f.whole), from_start.mT, g)
            grad_normaliser = _decayed(grad_normaliser, f.whole)
            if e is not None:
                grad_normaliser = grad_normaliser + (from_start * e).sum(1)
        return dq, dk, dv, None, grad_values, grad_normaliser, None


def chunks(length):
    """The slices of a text of ``length`` tokens."""
    return [slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]


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


def _decayed(normaliser, whole):
    return _times(normaliser.unsqueeze(-1), whole).squeeze(-1)
