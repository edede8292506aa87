"""Learned positions of an image: one trained vector per column and one per row.

    x = token + C[column] + R[row],   C ∈ R^(width × D), R ∈ R^(height × D)

The absolute counterpart of ``permute2d`` in PermuteFormer's code (Chen 2021).
"""

import torch
from torch import Tensor, nn

from .image import Image, ImageScheme
from .registry import register
from .scheme import EMBEDDING


class LearnedEmbedding2d(nn.Module):
    """Two tables from N(0, 1/(2D)): their sums begin as ``LearnedEmbedding``'s rows do.

    Args:
        image: where the ids are.
        whole: as for ``Image.coordinates``.

    Attributes:
        columns: ``(width, D)``.
        rows: ``(height, D)``.
    """

    def __init__(self, image: Image, whole: bool, embed_dim, generator):
        super().__init__()
        self.image = image
        self.whole = whole
        self.columns = _drawn(image.width, embed_dim, generator)
        self.rows = _drawn(image.height, embed_dim, generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids ``(B or 1, L)`` to vectors ``(B or 1, L, D)``.

        Raises:
            UserError: the ids are not those of the image.
        """
        column, row = self.image.coordinates(ids, self.whole)
        lookup = nn.functional.embedding
        return lookup(column, self.columns) + lookup(row, self.rows)


def _drawn(length, embed_dim, generator):
    table = torch.empty(length, embed_dim)
    return nn.Parameter(table.normal_(std=(2 * embed_dim) ** -0.5, generator=generator))


@register("learned2d")
class Learned2d(ImageScheme):
    """One trained vector per column and one per row of an image (Chen 2021)."""

    family = EMBEDDING
    places = ("embedding",)
    paper = "Chen 2021"
    Options = Image

    def embedding(self, size, generator):
        return LearnedEmbedding2d(self.options, not size.causal, size.embed_dim, generator)
