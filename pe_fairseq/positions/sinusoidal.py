"""Sinusoidal positions, fixed (Vaswani et al. 2017, §3.5) or with learned frequencies.

    P[p] = sin(ω_i p), cos(ω_i p),   i = 0 … D/2 − 1

in one of two layouts:

    halves       [sin …, cos …],  ω_i = base^(−i / (D/2 − 1))   (tensor2tensor, fairseq)
    interleaved  [sin, cos, sin, cos, …],  ω_i = base^(−2i / D)  (the papers)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from .registry import register
from .scheme import EMBEDDING, Scheme, check_choice

LAYOUTS = ("halves", "interleaved")


def geometric_series(dim, layout, base, device=None) -> Tensor:
    """The fixed frequencies ω ``(dim // 2,)``, in float32."""
    half = dim // 2
    exponents = torch.arange(half, dtype=torch.float, device=device)
    steps = half - 1 if layout == "halves" else dim / 2
    return torch.exp(exponents * -(math.log(base) / steps))


def sinusoids(positions: Tensor, frequencies: Tensor, dim: int, layout: str) -> Tensor:
    """Vectors ``(…, dim)`` of ``positions`` ``(…)``; an odd dim ends in a zero.

    Angles are float32 products, as fairseq's are: a stock checkpoint must see the
    numbers that it was trained with.
    """
    angles = positions.float().unsqueeze(-1) * frequencies.float()
    pair = (torch.sin(angles), torch.cos(angles))
    if layout == "halves":
        vectors = torch.cat(pair, dim=-1)
    else:
        vectors = torch.stack(pair, dim=-1).flatten(-2)
    return nn.functional.pad(vectors, (0, dim % 2))


class WithFrequencies(nn.Module):
    """A module whose ``frequencies`` stay float32 when a model becomes half precision.

    Rounded to bfloat16, they would turn positions by whole radians within 500 tokens.
    """

    def _apply(self, fn, *args, **kwargs):
        kept = None if self.frequencies is None else self.frequencies.data
        super()._apply(fn, *args, **kwargs)
        if kept is not None and self.frequencies.dtype in (torch.float16, torch.bfloat16):
            self.frequencies.data = kept.float().to(self.frequencies.device)
        return self


def learned_frequencies(dim, layout, base) -> nn.Parameter:
    """Frequencies that start at the fixed series; weight decay would pull them to 0."""
    frequencies = nn.Parameter(geometric_series(dim, layout, base))
    frequencies.no_weight_decay = True
    return frequencies


class SinusoidalEmbedding(WithFrequencies):
    """Sinusoids of any position, made when asked for; no table.

    Args:
        dim: D.
        layout: ``halves`` or ``interleaved``.
        base: the longest wavelength is 2π · base (about, in ``interleaved``).
        first_position: what position 0 counts as: 0, or ``padding_idx + 1`` in the
            fixed ``halves``, which fairseq's checkpoints were trained with.
        learnable: the frequencies are a parameter ``(D // 2,)``.
    """

    def __init__(self, dim, layout, base, first_position, learnable):
        super().__init__()
        self.dim = dim
        self.layout = layout
        self.base = base
        self.first_position = first_position
        self.frequencies = learned_frequencies(dim, layout, base) if learnable else None

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids ``(B or 1, L)`` to float32 vectors ``(B or 1, L, D)``."""
        frequencies = self.frequencies
        if frequencies is None:
            frequencies = geometric_series(self.dim, self.layout, self.base, ids.device)
        return sinusoids(ids + self.first_position, frequencies, self.dim, self.layout)


@dataclass(frozen=True)
class SinusoidOptions:
    """Options of the absolute sinusoids.

    Attributes:
        layout: ``halves`` (fairseq's) or ``interleaved`` (the papers').
        base: the base of the geometric series of frequencies.
    """

    layout: str = "halves"
    base: float = 10000.0

    def __post_init__(self):
        check_choice("layout", self.layout, LAYOUTS)
        check_base(self.base)


def check_base(base):
    """Raise UserError unless ``base`` is a finite number above 1."""
    if not base > 1 or math.isinf(base):
        raise UserError(f"base={base:g} must be a finite number above 1")


def check_width(dim, what):
    """Raise UserError if no geometric series of frequencies fits into ``dim``."""
    if dim < 4:
        raise UserError(f"sinusoidal positions need {what} of 4 or more, not {dim}")


@register("sinusoidal", "sin", "fs-ape")
class Sinusoidal(Scheme):
    """Fixed sinusoids, defined for every position (Vaswani et al. 2017, §3.5)."""

    family = EMBEDDING
    places = ("embedding",)
    paper = "Vaswani et al. 2017"
    translation_invariant = False
    Options = SinusoidOptions
    learnable = False

    def embedding(self, size, generator):
        check_width(size.embed_dim, "an embedding")
        stock = self.options.layout == "halves" and not self.learnable
        return SinusoidalEmbedding(
            size.embed_dim,
            self.options.layout,
            self.options.base,
            size.unused_rows if stock else 0,
            self.learnable,
        )


@register("learnable-sinusoidal", "ls-ape")
class LearnableSinusoidal(Sinusoidal):
    """Sinusoids whose frequencies are trained (Wang et al. 2021, §3.2)."""

    paper = "Wang et al. 2021"
    learnable = True
