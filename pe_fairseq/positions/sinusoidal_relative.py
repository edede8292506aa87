"""Sinusoids of the distance as relative vectors (Wei et al. 2019; Wang et al. 2021).

    score_ij = q_i · (k_j + P[m]) / √head_dim
    output_i = Σ_j a_ij (v_j + P[m]),   m = i − j
    P[m] = sin(ω_i m), cos(ω_i m)

m has its sign: sin tells before from after. NEZHA's code shifts the clipped distance to
be positive instead, P[clip(m) + clip] (option ``released``); with trained frequencies
that shift biases the gradient.
"""

from dataclasses import dataclass
from typing import Optional

from ..errors import UserError
from .registry import register
from .relative import RelativeVectors
from .scheme import RELATIVE_VECTORS, Scheme, check_choice
from .shaw import check_clip
from .sinusoidal import (
    LAYOUTS,
    WithFrequencies,
    check_base,
    check_width,
    geometric_series,
    learned_frequencies,
    sinusoids,
)


class SinusoidalRelativeVectors(WithFrequencies, RelativeVectors):
    """Sinusoids of every distance that occurs, the same on keys and values."""

    def __init__(self, options, head_dim, learnable):
        super().__init__(options.values, options.clip)
        self.options = options
        self.head_dim = head_dim
        self.frequencies = (
            learned_frequencies(head_dim, options.layout, options.base) if learnable else None
        )

    def key_vectors(self, distances):
        options, frequencies = self.options, self.frequencies
        if frequencies is None:
            frequencies = geometric_series(
                self.head_dim, options.layout, options.base, distances.device
            )
        if self.clip is not None:
            distances = distances.clamp(-self.clip, self.clip)
        if options.released:
            distances = distances + self.clip
        return sinusoids(distances, frequencies, self.head_dim, options.layout)

    value_vectors = key_vectors


@dataclass(frozen=True)
class _Options:
    """
    Attributes:
        clip: distances beyond ±clip share one vector; none by default.
        values: vectors on the values too, not on the keys alone.
        layout, base: of the sinusoids, as in ``sinusoidal``.
        released: NEZHA's shifted distances; needs a clip.
    """

    clip: Optional[int] = None
    values: bool = True
    layout: str = "interleaved"
    base: float = 10000.0
    released: bool = False

    def __post_init__(self):
        check_choice("layout", self.layout, LAYOUTS)
        check_base(self.base)
        if self.clip is not None:
            check_clip(self.clip)
        elif self.released:
            raise UserError("released=true needs a clip; NEZHA's is 64")


@register("sinusoidal-relative", "nezha", "fs-rpe")
class SinusoidalRelative(Scheme):
    """Fixed sinusoids of the distance, on keys and values (NEZHA, Wei et al. 2019)."""

    family = RELATIVE_VECTORS
    places = ("score", "value")
    paper = "Wei et al. 2019"
    translation_invariant = True
    needs_scores = True
    Options = _Options
    learnable = False

    def relative_term(self, size, generator):
        check_width(size.head_dim, "heads")
        return SinusoidalRelativeVectors(self.options, size.head_dim, self.learnable)


@register("learnable-sinusoidal-relative", "ls-rpe")
class LearnableSinusoidalRelative(SinusoidalRelative):
    """Sinusoids of the distance with trained frequencies (Wang et al. 2021, §3.2)."""

    paper = "Wang et al. 2021"
    learnable = True

    @dataclass(frozen=True)
    class Options(_Options):
        """
        Attributes:
            per_layer: frequencies for each layer instead of one series for all.
        """

        per_layer: bool = True
