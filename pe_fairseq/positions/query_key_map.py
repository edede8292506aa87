"""What every map of queries and keys by position is: the M of φ(q_i)ᵀ M_iᵀ M_j φ(k_j)."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Optional, Tuple

from torch import Tensor, nn

from ..attention.linear_chunks import Powers


class QueryKeyMap(nn.Module, ABC):
    """Maps queries and keys before their product (features, under linear attention).

    Attributes:
        keeps_sign: of what is not negative it makes nothing that is.
    """

    keeps_sign: ClassVar[bool]

    @abstractmethod
    def prepare(self, ids: Tensor) -> Any:
        """What all layers need at ids ``(B or 1, L)``."""

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor, prepared) -> Tuple[Tensor, Tensor]:
        """Map queries and keys ``(B, H, L, key_dim)`` by what was prepared for their ids."""

    def powers(self, step: int) -> Optional[Powers]:
        """The powers P^(step · a) of a chunk if the map of id p is a permutation P^p, or None.

        Linear attention then permutes chunk by chunk, which is faster than by ids.
        """
        return None
