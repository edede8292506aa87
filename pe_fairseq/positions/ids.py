"""Position ids: which integer a token's position is.

Real tokens count 0, 1, 2, … from the left; padding takes no position, so a
left-padded row, a right-padded row and the row alone have the same ids.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from ..errors import UserError

LARGEST = 2**24  # float32 has every whole number up to here


@dataclass(frozen=True)
class PositionIds:
    """Ids ``offset + stride · n`` for the n-th real token of each row.

    Stride and offset are changed at evaluation, to see what a trained model does
    with positions that it did not meet. Stride 4 at training is the skip-position
    attack of "What Do Position Embeddings Learn?" (Wang & Chen 2020).

    Raises:
        UserError: stride below 1 or offset below 0.
    """

    stride: int = 1
    offset: int = 0

    def __post_init__(self):
        if self.stride < 1:
            raise UserError(f"the position stride is {self.stride}; it must be 1 or more")
        if self.offset < 0:
            raise UserError(f"the position offset is {self.offset}; it must be 0 or more")

    def of(self, counts: Tensor) -> Tensor:
        """Return the ids of tokens with so many real tokens before them."""
        return self.offset + self.stride * counts

    def __call__(self, length: int, padding_mask: Optional[Tensor], device=None) -> Tensor:
        """Return the ids of whole rows; see ``count_tokens`` for the arguments."""
        return self.of(count_tokens(length, padding_mask, device))

    def last(self, length: int) -> int:
        """The largest id that a row of ``length`` tokens can have.

        Raises:
            UserError: it is so large that float32 no longer tells neighbours apart.
        """
        last = self.offset + self.stride * (length - 1)
        if last >= LARGEST:
            raise UserError(
                f"{length} tokens from position {self.offset} in steps of {self.stride} reach "
                f"position {last}; positions must stay below {LARGEST}"
            )
        return last


def count_tokens(length: int, padding_mask: Optional[Tensor], device=None) -> Tensor:
    """How many real tokens stand before each token: ``(1, length)``, or ``(batch, length)``
    where a row has padding.

    Args:
        length: tokens per row, padding included.
        padding_mask: ``(batch, length)``, True at padding, or None.
        device: where to put the counts when there is no mask.
    """
    if padding_mask is None:
        return torch.arange(length, device=device).unsqueeze(0)
    # padding before the first token would count -1
    return ((~padding_mask).long().cumsum(dim=1) - 1).clamp(min=0)
