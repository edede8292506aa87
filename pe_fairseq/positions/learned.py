"""Learned absolute positions: one trained vector per position.

    x_p = token_p + P[p],   P ∈ R^(max_positions × D)

BERT's and GPT-2's own scheme ("fully learnable APE" in Wang et al. 2021, §3).
"""

import torch
from torch import Tensor, nn

from .registry import register
from .scheme import EMBEDDING, Scheme


class LearnedEmbedding(nn.Module):
    """A table of ``max_positions`` vectors, drawn from N(0, 1/D) as fairseq draws it.

    Attributes:
        weight: ``(unused_rows + max_positions, D)``; position p is row
            ``unused_rows + p``.
    """

    def __init__(self, max_positions, embed_dim, unused_rows, generator):
        super().__init__()
        self.unused_rows = unused_rows
        table = torch.zeros(unused_rows + max_positions, embed_dim)
        table[unused_rows:].normal_(std=embed_dim**-0.5, generator=generator)
        self.weight = nn.Parameter(table)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids ``(B or 1, L)``, within the table, to vectors ``(B or 1, L, D)``.

        An id between two rows (a position that was interpolated) gets their
        weighted mean.
        """
        if not ids.is_floating_point():
            return nn.functional.embedding(ids + self.unused_rows, self.weight)
        below = ids.floor().long()
        above = ids.ceil().long()
        share = (ids - below).unsqueeze(-1).to(self.weight.dtype)
        return torch.lerp(self.forward(below), self.forward(above), share)


@register("learned", "absolute", "ape", "fl-ape")
class Learned(Scheme):
    """One trained vector per position (Gehring et al. 2017; Devlin et al. 2019)."""

    family = EMBEDDING
    places = ("embedding",)
    paper = "Gehring et al. 2017"
    translation_invariant = False
    bounded = True

    def embedding(self, size, generator):
        return LearnedEmbedding(size.max_positions, size.embed_dim, size.unused_rows, generator)
