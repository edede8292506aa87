"""Rotary positions (RoPE, Su et al. 2021, eq. 34).

Pairs of query and key dimensions turn by position · θ_i before their product, which then
depends on the distance alone:

    (x_a, x_b) → (x_a cos φ − x_b sin φ,  x_a sin φ + x_b cos φ),   φ = p θ_i

    θ_i = base^(−2i / d),   i = 0 … d/2 − 1

The pair i is dimensions (i, i + d/2), ``half`` (GPT-NeoX, Llama), or (2i, 2i + 1),
``interleaved`` (the paper).
"""

from dataclasses import dataclass
from typing import Tuple

import torch
from torch import Tensor

from ..errors import UserError
from .query_key_map import QueryKeyMap
from .registry import register
from .scheme import QUERY_KEY_MAP, Scheme, check_choice
from .sinusoidal import check_base

PAIRINGS = ("half", "interleaved")


class Rotation(QueryKeyMap):
    """Turns the first ``rotated`` dimensions of every head; no parameters.

    Of features that are not negative it makes some that are, so linear attention keeps the
    unturned ones for the sum of the weights (Su et al. 2021, eq. 19).

    Args:
        rotated: d, an even number of dimensions.
    """

    keeps_sign = False

    def __init__(self, rotated, base, pairing):
        super().__init__()
        self.rotated = rotated
        self.base = base
        self.pairing = pairing

    def prepare(self, ids: Tensor) -> Tuple[Tensor, Tensor]:
        """The cos and the signed sin that each dimension at ``ids`` ``(B or 1, L)`` meets:
        ``(B or 1, 1, L, rotated)``, float32.

        The angles themselves are float64: at position 65,000 a float32 angle is off by
        up to 0.004, a bfloat16 one by full turns.
        """
        exponents = torch.arange(0, self.rotated, 2, dtype=torch.float64, device=ids.device)
        frequencies = self.base ** -(exponents / self.rotated)
        angles = (ids.double().unsqueeze(-1) * frequencies).unsqueeze(1)
        cos, sin = angles.cos().float(), angles.sin().float()
        return self._pair(cos, cos), self._pair(-sin, sin)

    def forward(self, query: Tensor, key: Tensor, prepared) -> Tuple[Tensor, Tensor]:
        """Turn queries and keys ``(B, H, L, head_dim)`` by what was prepared for their ids."""
        return self._turn(query, *prepared), self._turn(key, *prepared)

    def _turn(self, x, cos, sin):
        """(a, b) · (cos, cos) + (b, a) · (−sin, sin), in float32."""
        pairs = x[..., : self.rotated].float()
        turned = torch.addcmul(pairs * cos, self._swap(pairs), sin).to(x.dtype)
        if self.rotated == x.size(-1):
            return turned
        return torch.cat((turned, x[..., self.rotated :]), dim=-1)

    def _pair(self, a, b):
        """``(…, rotated)`` of the first and the second dimension of each pair."""
        if self.pairing == "half":
            return torch.cat((a, b), dim=-1)
        return torch.stack((a, b), dim=-1).flatten(-2)

    def _swap(self, x):
        """``x`` with the dimensions of each pair exchanged."""
        if self.pairing == "half":
            return x.roll(self.rotated // 2, dims=-1)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


@register("rope", "rotary")
class Rope(Scheme):
    """Queries and keys turned by their positions (RoPE, Su et al. 2021)."""

    family = QUERY_KEY_MAP
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

    def query_key_map(self, size, layer):
        rotated = int(size.key_dim * self.options.fraction) // 2 * 2
        if rotated == 0:
            raise UserError(
                f"fraction={self.options.fraction:g} of a head of {size.key_dim} leaves no "
                "pair of dimensions to turn"
            )
        return Rotation(rotated, self.options.base, self.options.pairing)
