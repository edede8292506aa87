"""PermuteFormer's permutations for images (Chen 2021): one half of the features by column, the
other by row.

    weight_ij = φ(q_i) · (P_h^(c_j−c_i) ⊕ P_h^(r_j−r_i)) φ(k_j),   (P x)[a] = x[π(a)]

Token i stands in column c_i of row r_i. Each head h has one random permutation π of half its
features, which serves both halves. Weights do not decay: an image has no direction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from .image import Image, ImageScheme
from .permute import Permutations, check_seed, draw, heads_that_return
from .query_key_map import QueryKeyMap
from .registry import register
from .scheme import QUERY_KEY_MAP


class Permutations2d(QueryKeyMap):
    """Maps the first half of queries and keys by P^column, the second by P^row; no parameters.

    Args:
        permutations: π of each head, ``(H, M / 2)``.
        image: where the ids are.
        whole: as for ``Image.coordinates``.
    """

    keeps_sign = True

    def __init__(self, permutations: Tensor, image: Image, whole: bool):
        super().__init__()
        self.of_half = Permutations(permutations)
        self.image = image
        self.whole = whole

    def prepare(self, ids: Tensor):
        """The permutations at ids ``(B or 1, L)`` and their inverses: each
        ``(B or 1, H, L, M)``.

        Raises:
            UserError: the ids are not those of the image.
        """
        columns, rows = self.image.coordinates(ids, self.whole)
        both = zip(self.of_half.prepare(columns), self.of_half.prepare(rows))
        half = self.of_half.permutations.size(-1)
        return tuple(torch.cat((first, half + second), dim=-1) for first, second in both)

    def forward(self, query: Tensor, key: Tensor, prepared):
        """Permute queries and keys ``(B, H, L, M)`` by what was prepared for their ids."""
        return self.of_half(query, key, prepared)


@register("permute2d")
class Permute2d(ImageScheme):
    """Features permuted by column and row of an image (PermuteFormer)."""

    family = QUERY_KEY_MAP
    places = ("query/key map",)
    paper = "Chen 2021"

    @dataclass(frozen=True)
    class Options(Image):
        """
        Attributes:
            seed: of the permutations.
            per_layer: every layer has its own permutations.
        """

        seed: int = 1
        per_layer: bool = False

        def __post_init__(self):
            super().__post_init__()
            check_seed(self.seed)

    def query_key_map(self, size, layer):
        drawn = torch.tensor(self._drawn(size, layer))
        return Permutations2d(drawn, self.options, whole=not size.causal)

    def caution(self, size):
        side = max(self.options.width, self.options.height)
        heads = heads_that_return(self._drawn(size, layer=0), side)
        if not heads:
            return None
        return (
            f"permute2d: in {len(heads)} of {size.heads} heads nearly all features are back at "
            f"their place at some distance below {side} columns or rows, where the permutation "
            f"tells nothing ({', '.join(heads)}); another seed= or more features may do better"
        )

    def _drawn(self, size, layer):
        if size.key_dim % 2:
            raise UserError(
                f"permute2d gives one half of a head's features to columns and one to rows; "
                f"{size.key_dim} do not halve. Choose an even number"
            )
        return draw(size.heads, size.key_dim // 2, (self.options.seed + layer) % 2**64)
