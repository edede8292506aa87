"""How blocked attention goes over queries and distances: sizes, blocks, bands.

Shapes: B batch, H heads, D head_dim; ``rows`` queries of a block. B·H is one dimension.
"""

import math
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

import torch
from torch import Tensor

ROWS = 64  # 2 or more, as Band counts on


@dataclass(frozen=True)
class Layout:
    """The sizes and the mask of one call.

    Attributes:
        padding: ``(B, key_len)``, True at padding, or None.
    """

    batch: int
    heads: int
    query_len: int
    key_len: int
    causal: bool
    padding: Optional[Tensor]

    @property
    def rows(self) -> int:
        """Queries of a block; the last block may have fewer."""
        return min(ROWS, self.query_len)

    def blocks(self) -> Iterator["Block"]:
        for start in range(0, self.query_len, self.rows):
            yield Block(self, start, min(start + self.rows, self.query_len))


@dataclass(frozen=True)
class Block:
    """The queries ``start … stop`` of a call."""

    layout: Layout
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def queries(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def first(self) -> int:
        """The key that stands where the block's first query stands."""
        return self.layout.key_len - self.layout.query_len + self.start

    @property
    def key_len(self) -> int:
        """How many keys the block may see."""
        return self.first + self.rows if self.layout.causal else self.layout.key_len

    @property
    def of_bias(self) -> Tuple[slice, slice, slice]:
        """Where the block's bias is in that of all blocks, ``(H, rows, Q + K − 1)``."""
        start = self.layout.key_len - 1 - self.first
        return slice(None), slice(self.rows), slice(start, start + self.key_len)


class Scratch:
    """Memory by name, used again by the next block."""

    def __init__(self, like: Tensor):
        self.like = like
        self.memory = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.memory or self.memory[name].numel() < size:
            self.memory[name] = self.like.new_empty(size)
        return self.memory[name][:size].view(shape)


class Band:
    """Where a block meets the vectors of the distances reach … −reach, or reach … 0 if causal.

    Vectors are ``(R, D)`` or ``(H, R, D)`` in falling order of distance, relative to the
    first of them, which is therefore 0 and never touched: the keys at ``reach`` and further
    in the past get nothing.

    A *shifted* block ``(B·H, rows, width)`` has one distance in each column; seen through a
    view whose rows begin one column further left each, it has one key in each column. Before
    ``columns`` are distances of the far past; after them those of the far future, which
    share its last vector, or, if causal, keys that no query may see.
    """

    def __init__(self, block: Block, vectors: Tensor, scratch: Scratch):
        self.causal = block.layout.causal
        distances = vectors.size(-2)
        reach = distances - 1 if self.causal else distances // 2
        last = block.first + block.rows - 1
        start = max(0, block.first - reach + 1)
        stop = min(block.key_len, last + reach)
        self.keys = slice(start, stop)
        self.far_future = slice(stop, block.key_len)
        width = stop - start + block.rows - 1
        skipped = reach - (last - start)  # the distance of column 0 is last − start
        self.columns = slice(max(0, 1 - skipped), min(width, distances - skipped))
        self.used = slice(self.columns.start + skipped, self.columns.stop + skipped)
        count = block.layout.batch * block.layout.heads
        self.shifted = scratch("band", count, block.rows, width)
        self.by_key = self.shifted.as_strided(
            (count, block.rows, stop - start),
            (block.rows * width, width - 1, 1),
            block.rows - 1,
        )

    def add_products(self, scores: Tensor, x: Tensor, vectors: Tensor):
        """scores_ij += x_i · vector_m

        Args:
            scores: ``(B·H, rows, keys)``.
            x: ``(B·H, rows, D)``.
        """
        vectors, products = vectors[..., self.used, :], self.shifted[..., self.columns]
        if vectors.dim() == 2:
            torch.mm(x.flatten(0, 1), vectors.T, out=products.flatten(0, 1))
        else:
            products.copy_(x @ _per_row(vectors, x).mT)
        self.shifted[..., : self.columns.start] = 0
        after = self.shifted[..., self.columns.stop :]
        if self.causal:
            after.zero_()
        else:
            after.copy_(products[..., -1:])
            scores[..., self.far_future] += products[..., -1:]
        scores[..., self.keys] += self.by_key

    def sums(self, weights: Tensor) -> Tensor:
        """The sum of the weights ``(B·H, rows, keys)`` of each distance that has a vector:
        ``(B·H, rows, columns)``, valid until the next call."""
        self.shifted.zero_()
        self.by_key.copy_(weights[..., self.keys])
        sums = self.shifted[..., self.columns]
        if not self.causal:
            sums[..., -1] += self.shifted[..., self.columns.stop :].sum(-1)
            sums[..., -1] += weights[..., self.far_future].sum(-1)
        return sums

    def combine(self, sums: Tensor, vectors: Tensor) -> Tensor:
        """Σ_m sums_m · vector_m: ``(B·H, rows, D)``."""
        vectors = vectors[..., self.used, :]
        if vectors.dim() == 2:
            return (sums.flatten(0, 1) @ vectors).unflatten(0, sums.shape[:2])
        return sums @ _per_row(vectors, sums)

    def add_outer(self, vectors: Tensor, sums: Tensor, x: Tensor):
        """vector_m += Σ sums_m · x, over all rows that share the vector."""
        vectors = vectors[..., self.used, :]
        if vectors.dim() == 2:
            vectors.addmm_(sums.flatten(0, 1).T, x.flatten(0, 1))
        else:
            vectors += (sums.mT @ x).unflatten(0, (-1, len(vectors))).sum(0)


def _per_row(vectors, x):
    """Vectors ``(H, columns, D)`` for each of the B·H of ``x``."""
    return vectors.repeat(len(x) // len(vectors), 1, 1)
