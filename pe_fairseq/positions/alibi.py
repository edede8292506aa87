"""Attention with linear biases (ALiBi, Press et al. 2022).

    score_ij = q_i · k_j / √head_dim − slope_h |m|,   m = i − j

For 2^a heads, slope_h = 2^(−8h / H), h = 1 … H. Other head counts follow the released
code: the slopes of the power of two below, and every other one of the power above.
"""

import torch
from torch import Tensor

from .registry import register
from .relative import ScalarBias
from .scheme import SCALAR_BIAS, Scheme


def slopes(heads: int) -> list:
    """The slope of each head, as the released code has them for any head count."""
    below = 2 ** (heads.bit_length() - 1)
    own = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    if below == heads:
        return own
    above = [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1)]
    return own + above[0::2][: heads - below]


class LinearBias(ScalarBias):
    """A fixed penalty per head, in proportion to the distance; no parameters."""

    def __init__(self, heads):
        super().__init__()
        self.slopes = slopes(heads)

    def per_distance(self, distances: Tensor) -> Tensor:
        slope = torch.tensor(self.slopes, device=distances.device)
        return -slope.unsqueeze(1) * distances.abs()


@register("alibi")
class Alibi(Scheme):
    """A penalty that grows with the distance, symmetric where both sides are seen."""

    family = SCALAR_BIAS
    places = ("score",)
    paper = "Press et al. 2022"
    translation_invariant = True
    needs_scores = True

    def relative_term(self, size, generator):
        return LinearBias(size.heads)
