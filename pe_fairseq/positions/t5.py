"""T5's relative bias: one trained number per head and bucket of distances (Raffel et al. 2020).

    score_ij = q_i · k_j / √head_dim + bias[bucket(m), h],   m = i − j

Buckets are exact up to half of them, then grow by powers up to ``max_distance``; all
further distances share the last. Causal attention has buckets for the past alone;
two-sided attention gives half of them to each side, later keys the upper half. T5 itself
leaves out 1/√head_dim; we keep it, so that a comparison is one of the bias alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from .registry import register
from .relative import ScalarBias
from .scheme import SCALAR_BIAS, Scheme


def bucket(distances: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket, 0 … buckets − 1, of each distance m ``(R,)``."""
    first = torch.zeros_like(distances)
    if causal:
        apart = distances.clamp(min=0)
    else:
        buckets //= 2
        first = buckets * (distances < 0)
        apart = distances.abs()
    exact = buckets // 2
    growth = torch.log(apart.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    grown = exact + (growth * (buckets - exact)).long()
    return first + torch.where(apart < exact, apart, grown.clamp(max=buckets - 1))


class BucketBias(ScalarBias):
    """A trained bias per bucket and head.

    Attributes:
        weight: ``(buckets, H)``, drawn from N(0, 1/embed_dim) as T5's is.
    """

    def __init__(self, options, heads, embed_dim, causal, generator):
        super().__init__()
        self.options = options
        self.causal = causal
        table = torch.empty(options.buckets, heads)
        self.weight = nn.Parameter(table.normal_(std=embed_dim**-0.5, generator=generator))

    def per_distance(self, distances):
        options = self.options
        which = bucket(distances, options.buckets, options.max_distance, self.causal)
        return self.weight.float()[which].T


@register("t5")
class T5(Scheme):
    """A trained bias per bucket of distances, shared by all layers (Raffel et al. 2020)."""

    family = SCALAR_BIAS
    places = ("score",)
    paper = "Raffel et al. 2020"
    translation_invariant = True
    needs_scores = True

    @dataclass(frozen=True)
    class Options:
        """
        Attributes:
            buckets: how many biases a head has.
            max_distance: from here on all distances share a bucket.
            per_layer: biases for each layer instead of one table for all.
        """

        buckets: int = 32
        max_distance: int = 128
        per_layer: bool = False

        def __post_init__(self):
            if self.buckets < 4 or self.buckets % 4:
                raise UserError(f"buckets={self.buckets} must be a multiple of 4")
            if self.max_distance > 10**6:
                raise UserError(f"max_distance={self.max_distance} is above a million")
            if self.max_distance <= self.buckets:
                raise UserError(
                    f"max_distance={self.max_distance} must be above buckets={self.buckets}"
                )

    def relative_term(self, size, generator):
        return BucketBias(self.options, size.heads, size.embed_dim, size.causal, generator)
