"""Fixed sinusoidal positions (Vaswani et al. 2017, §3.5).

    P[p] = sin(ω_i p), cos(ω_i p),   i = 0 … D/2 − 1

in one of two layouts:

    halves       [sin …, cos …],  ω_i = base^(−i / (D/2 − 1))   (tensor2tensor, fairseq)
    interleaved  [sin, cos, sin, cos, …],  ω_i = base^(−2i / D)  (the paper)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from .registry import register
from .scheme import Scheme, check_choice

LAYOUTS = ("halves", "interleaved")


class SinusoidalEmbedding(nn.Module):
    """Sinusoids of any position, made when asked for; no parameters and no table.

    Args:
        embed_dim: D; an odd D ends in a zero, as in fairseq.
        layout: ``halves`` or ``interleaved``.
        base: the longest wavelength is 2π · base (about, in ``interleaved``).
        first_position: what position 0 counts as. fairseq's checkpoints were
            trained with ``padding_idx + 1``.
    """

    def __init__(self, embed_dim, layout, base, first_position):
        super().__init__()
        self.embed_dim = embed_dim
        self.layout = layout
        self.base = base
        self.first_position = first_position

    def frequencies(self, device=None) -> Tensor:
        """Return ω ``(D // 2,)``, in float32."""
        half = self.embed_dim // 2
        exponents = torch.arange(half, dtype=torch.float, device=device)
        steps = half - 1 if self.layout == "halves" else self.embed_dim / 2
        return torch.exp(exponents * -(math.log(self.base) / steps))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids ``(B or 1, L)`` to float32 vectors ``(B or 1, L, D)``.

        Angles are float32 products, as fairseq's are: a stock checkpoint must see
        the numbers that it was trained with.
        """
        positions = (ids + self.first_position).float()
        angles = positions.unsqueeze(-1) * self.frequencies(ids.device)
        pair = (torch.sin(angles), torch.cos(angles))
        if self.layout == "halves":
            vectors = torch.cat(pair, dim=-1)
        else:
            vectors = torch.stack(pair, dim=-1).flatten(-2)
        return nn.functional.pad(vectors, (0, self.embed_dim % 2))


@register("sinusoidal")
class Sinusoidal(Scheme):
    """Fixed sinusoids, defined for every position (Vaswani et al. 2017, §3.5)."""

    paper = "Vaswani et al. 2017"
    translation_invariant = False
    bounded = False

    @dataclass(frozen=True)
    class Options:
        layout: str = "halves"
        base: float = 10000.0

        def __post_init__(self):
            check_choice("layout", self.layout, LAYOUTS)
            if not self.base > 1 or math.isinf(self.base):
                raise UserError(f"base={self.base:g} must be a finite number above 1")

    def embedding(self, size, generator):
        if size.embed_dim < 4:
            raise UserError(
                f"sinusoidal positions need an embedding of 4 or more, not {size.embed_dim}"
            )
        return SinusoidalEmbedding(
            size.embed_dim, self.options.layout, self.options.base, size.unused_rows
        )
