"""Positions in an image that is read row by row, as column and row."""

from dataclasses import dataclass
from typing import Optional, Tuple

from torch import Tensor

from ..errors import UserError
from .scheme import Scheme


@dataclass(frozen=True)
class Image:
    """The options of a scheme for images.

    The defaults are the images of Chen 2021: 32 × 32 pixels between [CLS] and [SEP].

    Attributes:
        width: tokens in a row.
        height: rows.
        prefix: tokens before the image, all at column 0 of row 0.
        suffix: tokens after it, all at the last column of the last row.

    Raises:
        UserError: a size is out of range.
    """

    width: int = 32
    height: int = 32
    prefix: int = 1
    suffix: int = 1

    def __post_init__(self):
        for name, least in (("width", 1), ("height", 1), ("prefix", 0), ("suffix", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be {least} or more")

    @property
    def positions(self) -> int:
        """How many there are, those before and after the image included."""
        return self.prefix + self.width * self.height + self.suffix

    def coordinates(self, ids: Tensor, whole: bool) -> Tuple[Tensor, Tensor]:
        """Columns and rows at ids ``(B or 1, L)``: each ``(B or 1, L)``.

        Args:
            whole: every row of ids must reach the last position. A causal model also meets
                beginnings of an image, as long as it is written token by token.

        Raises:
            UserError: an id is beyond the last position, or a row of ids ends before it.
        """
        ends = ids.amax(dim=-1).tolist()
        refusal = self.refusal(max(ends))
        if refusal is not None:
            raise UserError(refusal)
        if whole and min(ends) < self.positions - 1:
            raise UserError(
                f"a sequence ends at position {min(ends)}, and the image at position "
                f"{self.positions - 1} ({self._sizes()}): where tokens see later ones, a "
                "sequence is one whole image. Give the width and height of your images"
            )
        pixels = (ids - self.prefix).clamp(0, self.width * self.height - 1)
        return pixels % self.width, pixels // self.width

    def refusal(self, position: int) -> Optional[str]:
        """Why there is no such position, or None where there is."""
        if position < self.positions:
            return None
        return (
            f"position {position} is beyond the image, which ends at position "
            f"{self.positions - 1} ({self._sizes()}). Give the width and height of your "
            "images, or use shorter blocks"
        )

    def _sizes(self):
        return (
            f"width={self.width}, height={self.height}, prefix={self.prefix}, "
            f"suffix={self.suffix}"
        )


class ImageScheme(Scheme):
    """A scheme whose options are, or extend, those of an ``Image``.

    A shift of all positions moves some tokens to the next row, so none is invariant.
    """

    translation_invariant = False

    def longest(self, size):
        return self.options.positions

    def refusal(self, position):
        return self.options.refusal(position)
