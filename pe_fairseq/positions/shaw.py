"""Learned relative vectors (Shaw et al. 2018), "fully learnable RPE" in Wang et al. 2021.

    score_ij = q_i · (k_j + key[clip(m)]) / √head_dim
    output_i = Σ_j a_ij (v_j + value[clip(m)]),   m = i − j

with one row per distance from −clip to clip, so 2·clip + 1 of them.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..errors import UserError
from .registry import register
from .relative import RelativeVectors
from .scheme import RELATIVE_VECTORS, Scheme


class LearnedRelativeVectors(RelativeVectors):
    """Tables of 2·clip + 1 vectors, drawn by Xavier's rule as Shaw's own code does.

    Attributes:
        key_table, value_table: ``(2·clip + 1, head_dim)``, or ``(H, 2·clip + 1, head_dim)``
            per head; value_table is None where only keys have vectors. Decoders keep the rows
            of later keys too, so that encoders and decoders can exchange tables.
    """

    def __init__(self, clip, head_dim, heads, values, generator):
        super().__init__(values, clip)
        shape = (2 * clip + 1, head_dim)
        self.key_table = self._table(shape, heads, generator)
        self.value_table = self._table(shape, heads, generator) if values else None

    @staticmethod
    def _table(shape, heads, generator):
        table = torch.empty(shape if heads is None else (heads, *shape))
        bound = (6 / sum(shape)) ** 0.5
        return nn.Parameter(table.uniform_(-bound, bound, generator=generator))

    def key_vectors(self, distances):
        return self._rows(self.key_table, distances)

    def value_vectors(self, distances):
        return self._rows(self.value_table, distances)

    def _rows(self, table, distances):
        return table.index_select(-2, distances.clamp(-self.clip, self.clip) + self.clip)


@register("shaw", "relative", "fl-rpe")
class Shaw(Scheme):
    """Learned vectors per clipped distance, on keys and values (Shaw et al. 2018)."""

    family = RELATIVE_VECTORS
    places = ("score", "value")
    paper = "Shaw et al. 2018"
    translation_invariant = True
    needs_scores = True

    @dataclass(frozen=True)
    class Options:
        """
        Attributes:
            clip: distances beyond ±clip share one vector.
            values: vectors on the values too, not on the keys alone.
            per_head: a table for each head instead of one for all.
            per_layer: a table for each layer instead of one for all.
        """

        clip: int = 64
        values: bool = True
        per_head: bool = False
        per_layer: bool = True

        def __post_init__(self):
            check_clip(self.clip)

    def relative_term(self, size, generator):
        heads = size.heads if self.options.per_head else None
        return LearnedRelativeVectors(
            self.options.clip, size.head_dim, heads, self.options.values, generator
        )


def check_clip(clip):
    """Raise UserError unless ``clip`` is between 1 and a million."""
    if not 1 <= clip <= 10**6:
        raise UserError(f"clip={clip} must be 1 or more, and at most a million")
