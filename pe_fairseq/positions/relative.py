"""Relative positions: what depends on the distance m = query position − key position.

Shapes: B batch, H heads, Q query_len, K key_len, R distances. Nothing here has the
shape (Q, K, head_dim): whatever depends on a distance is made once per distance, and
spread over the pairs of query and key by an index.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Relative:
    """The distances of all pairs of a query and a key.

    Attributes:
        distances: the R distances that occur, in rising order: ``(R,)``, int.
        index: which of them a pair has: ``(B or 1, Q, K)``, int.
    """

    distances: Tensor
    index: Tensor

    @staticmethod
    def of(counts: Tensor, query_len: int, stride: int) -> "Relative":
        """Distances of the last ``query_len`` tokens to all tokens.

        Args:
            counts: how many real tokens stand before each token: ``(B or 1, K)``.
            stride: the distance of neighbouring tokens.
        """
        key_len = counts.size(1)
        lowest = 1 - query_len
        steps = torch.arange(lowest, key_len, device=counts.device)
        apart = counts[:, -query_len:, None] - counts[:, None, :]
        return Relative(stride * steps, (apart - lowest).clamp(0, len(steps) - 1))


class RelativeTerm(nn.Module):
    """What a layer's attention gets by distance: an added score, and maybe a value."""

    adds_to_values = False

    def score(self, query: Tensor, relative: Relative) -> Tensor:
        """Return what is added to the scaled scores: ``(B or 1, H, Q, K)``, float32 or wider.

        Args:
            query: ``(B, H, Q, head_dim)``, neither scaled nor rotated.
        """
        raise NotImplementedError

    def value(self, weights: Tensor, relative: Relative) -> Tensor:
        """Return what is added to the output: ``(B, H, Q, head_dim)``.

        Args:
            weights: attention weights after dropout: ``(B, H, Q, K)``, float32 or wider;
                many keys may share one distance, and half precision would lose their sum.
        """
        raise NotImplementedError


class ScalarBias(RelativeTerm):
    """A number per head and distance, added to the scores."""

    def per_distance(self, distances: Tensor) -> Tensor:
        """Map distances ``(R,)`` to biases ``(H, R)``, in float32."""
        raise NotImplementedError

    def score(self, query, relative):
        biases = self.per_distance(relative.distances)
        return biases[:, relative.index].transpose(0, 1)


class RelativeVectors(RelativeTerm):
    """A vector per distance, met by the query and, if ``adds_to_values``, attended to.

        score += q · key_m / √head_dim        output += Σ_j weights_ij value_m

    (Shaw et al. 2018, eqs. 3 and 4, in the factored form of their §3.3.)

    Args:
        clip: distances at and beyond ±clip have the vectors of ±clip; None where every
            distance has a vector of its own.
    """

    def __init__(self, adds_to_values: bool, clip: Optional[int]):
        super().__init__()
        self.adds_to_values = adds_to_values
        self.clip = clip

    def key_vectors(self, distances: Tensor) -> Tensor:
        """Map distances ``(R,)`` to vectors ``(R, head_dim)`` or ``(H, R, head_dim)``."""
        raise NotImplementedError

    def value_vectors(self, distances: Tensor) -> Tensor:
        """Like ``key_vectors``, for what is added to the values."""
        raise NotImplementedError

    def score(self, query, relative):
        query = query.to(torch.promote_types(query.dtype, torch.float32))
        vectors = self.key_vectors(relative.distances).to(query.dtype)
        products = query @ vectors.transpose(-2, -1)
        index = relative.index.unsqueeze(1).expand(*query.shape[:2], -1, -1)
        return products.gather(-1, index) * query.size(-1) ** -0.5

    def value(self, weights, relative):
        vectors = self.value_vectors(relative.distances).to(weights.dtype)
        index = relative.index.unsqueeze(1).expand_as(weights)
        summed = weights.new_zeros(*weights.shape[:-1], vectors.size(-2))
        return summed.scatter_add(-1, index, weights) @ vectors
