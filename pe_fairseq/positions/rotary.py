"""Rotary positions (RoPE, Su et al. 2021, eq. 34).

Pairs of query and key dimensions turn by position · θ_i before their product, which then
depends on the distance alone:

    (x_a, x_b) → (x_a cos φ − x_b sin φ,  x_a sin φ + x_b cos φ),   φ = p θ_i

    θ_i = base^(−2i / d),   i = 0 … d/2 − 1

The pair i is dimensions (i, i + d/2), ``half`` (GPT-NeoX, Llama), or (2i, 2i + 1),
``interleaved`` (the paper).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from .registry import register
from .scheme import ROTARY, Scheme, check_choice
from .sinusoidal import check_base

PAIRINGS = ("half", "interleaved")


class Rotation(nn.Module):
    """Turns the first ``rotated`` dimensions of every head; no parameters.

    Args:
        rotated: d, an even number of dimensions.
    """

    def __init__(self, rotated, base, pairing):
        super().__init__()
        self.rotated = rotated
        self.base = base
        self.pairing = pairing

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """Turn ``x`` ``(B, H, L, head_dim)`` by positions ``ids`` ``(B or 1, L)``."""
        cos, sin = self._cos_sin(ids)
        turned, rest = x[..., : self.rotated].float(), x[..., self.rotated :]
        if self.pairing == "half":
            a, b = turned.chunk(2, dim=-1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
        a, b = a * cos - b * sin, a * sin + b * cos
        if self.pairing == "half":
            turned = torch.cat((a, b), dim=-1)
        else:
            turned = torch.stack((a, b), dim=-1).flatten(-2)
        return torch.cat((turned.to(x.dtype), rest), dim=-1)

    def _cos_sin(self, ids):
        """cos and sin of the angles ``(B or 1, 1, L, rotated / 2)``, in float32.

        The angles themselves are float64: at position 65,000 a float32 angle is off by
        up to 0.004, a bfloat16 one by full turns.
        """
        exponents = torch.arange(0, self.rotated, 2, dtype=torch.float64, device=ids.device)
        frequencies = self.base ** -(exponents / self.rotated)
        angles = (ids.double().unsqueeze(-1) * frequencies).unsqueeze(1)
        return angles.cos().float(), angles.sin().float()


@register("rope", "rotary")
class Rope(Scheme):
    """Queries and keys turned by their positions (RoPE, Su et al. 2021)."""

    family = ROTARY
    places = ("query/key map",)
    paper = "Su et al. 2021"
    translation_invariant = True

    @dataclass(frozen=True)
    class Options:
        """
        Attributes:
            base: of the geometric series of frequencies.
            fraction: how much of each head turns, from its start.
            pairing: ``half`` or ``interleaved``.
        """

        base: float = 10000.0
        fraction: float = 1.0
        pairing: str = "half"

        def __post_init__(self):
            check_base(self.base)
            check_choice("pairing", self.pairing, PAIRINGS)
            if not 0 < self.fraction <= 1:
                raise UserError(f"fraction={self.fraction:g} must be above 0 and at most 1")

    def rotation(self, size):
        rotated = int(size.head_dim * self.options.fraction) // 2 * 2
        if rotated == 0:
            raise UserError(
                f"fraction={self.options.fraction:g} of a head of {size.head_dim} leaves no "
                "pair of dimensions to turn"
            )
        return Rotation(rotated, self.options.base, self.options.pairing)
