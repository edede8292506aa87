"""PermuteFormer's positions (Chen 2021): permuted features, and weights that decay.

    weight_ij = r_h^(i−j) φ(q_i) · P_h^(j−i) φ(k_j),   (P x)[a] = x[π(a)]

Each head h has a random permutation π and a factor r. It is split into P^i φ(q_i) and
P^j φ(k_j), and r, which linear attention applies from token to token. Nothing here limits the
length: powers come from the cycles of π.
"""

from collections import Counter
from dataclasses import dataclass
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.linear_chunks import CHUNK, Powers
from ..errors import UserError
from .query_key_map import QueryKeyMap
from .registry import register
from .scheme import QUERY_KEY_MAP, Scheme

DRAWS = 10_000
MUCH = 0.9

# what the released code gives to every attention module
RELEASED_SEED = 0xDEADBEEFDEADBEEF


class Permutations(QueryKeyMap):
    """Maps queries and keys at position p by P^p; no parameters.

    A checkpoint holds the permutations, since random streams change between versions.

    Args:
        permutations: π of each head, ``(H, M)``.
    """

    keeps_sign = True

    def __init__(self, permutations: Tensor):
        super().__init__()
        self.register_buffer("permutations", permutations)
        for name in ("order", "first", "place", "length"):
            self.register_buffer(name, torch.empty_like(permutations), persistent=False)
        self._find_cycles()
        self.register_load_state_dict_post_hook(lambda module, keys: module._find_cycles())

    def _find_cycles(self):
        """Coordinates listed cycle by cycle; for each, where its cycle begins and how it lies.

        ``order[h, first + k]`` is the coordinate that k steps of π lead to from the first of
        a cycle; ``place`` is the k of a coordinate, ``length`` how many its cycle has.
        """
        self._powers = {}
        for head, permutation in enumerate(self.permutations.tolist()):
            order, first, place, length = [], {}, {}, {}
            for cycle in cycles(permutation):
                for k, coordinate in enumerate(cycle):
                    first[coordinate], place[coordinate] = len(order), k
                    length[coordinate] = len(cycle)
                order += cycle
            rows = {"first": first, "place": place, "length": length}
            self.order[head] = torch.tensor(order)
            for name, found in rows.items():
                row = [found[coordinate] for coordinate in range(len(order))]
                getattr(self, name)[head] = torch.tensor(row)

    def prepare(self, ids: Tensor) -> Tuple[Tensor, Tensor]:
        """π^p and π^(−p) at ids p ``(B or 1, L)``: each ``(B or 1, H, L, M)``."""
        p = ids[:, None, :, None]
        return self._power(p), self._power(-p)

    def powers(self, step: int) -> Powers:
        """P^(step · a) for a = 0 … C; kept, as they are the same in every call."""
        if step not in self._powers:
            ids = step * torch.arange(CHUNK + 1, device=self.order.device)
            forth, back = self.prepare(ids.unsqueeze(0))
            self._powers = {step: Powers(forth[0], back[0])}
        return self._powers[step]

    def placed(self, x: Tensor, position: int) -> Tensor:
        """P^position of features ``(B, H, M, any)``."""
        p = torch.full((1, 1, 1, 1), position, device=self.order.device)
        return x.gather(2, self._power(p).mT.expand_as(x))

    def _power(self, p):
        heads = self.order.size(0)
        first, place, length = (x[:, None] for x in (self.first, self.place, self.length))
        found = first + (place + p) % length
        order = self.order[:, None].expand(heads, found.size(2), -1)
        return order.expand(found.size(0), -1, -1, -1).gather(-1, found)

    def forward(self, query: Tensor, key: Tensor, prepared) -> Tuple[Tensor, Tensor]:
        """Permute queries and keys ``(B, H, L, M)`` by what was prepared for their ids."""
        return tuple(
            _Gather.apply(x, *(i.expand_as(x) for i in prepared)) for x in (query, key)
        )


class _Gather(torch.autograd.Function):
    """``x.gather(-1, index)``, whose gradient is gathered by the inverse permutation."""

    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(index, inverse)
        return x.gather(-1, index)

    @staticmethod
    def backward(ctx, grad):
        index, inverse = ctx.saved_tensors
        return _Gather.apply(grad, inverse, index), None, None


def cycles(permutation: List[int]) -> List[List[int]]:
    """The cycles of a permutation, each from a coordinate to where π leads."""
    found, seen = [], set()
    for start in range(len(permutation)):
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(start)
            start = permutation[start]
        if cycle:
            found.append(cycle)
    return found


def largest_return(permutation: List[int], length: int) -> Tuple[float, int]:
    """How much of a head no longer tells two positions apart, at the worst distance.

    Returns:
        the largest fraction of coordinates that are back at their place after the same
        number of steps, below ``length``; and that number of steps.
    """
    back = torch.zeros(max(length, 2), dtype=torch.long)
    for size, count in Counter(map(len, cycles(permutation))).items():
        back[size::size] += size * count
    worst = int(back.argmax())
    return int(back[worst]) / len(permutation), worst


def heads_that_return(permutations: List[List[int]], length: int) -> List[str]:
    """Says which heads have nearly all features back at a distance below ``length``."""
    returns = [largest_return(permutation, length) for permutation in permutations]
    return [
        f"head {head}: {fraction:.0%} at {distance}"
        for head, (fraction, distance) in enumerate(returns)
        if fraction >= MUCH
    ]


def check_seed(seed):
    """Raise UserError for a seed that no generator takes."""
    if not 0 <= seed < 2**64:
        raise UserError(f"seed={seed} must be 0 or more, below 2^64")


def draw(heads: int, width: int, seed: int) -> List[List[int]]:
    """A random permutation for each head, as the released code draws them."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(width, generator=generator).tolist() for _ in range(heads)]


def draw_below(heads, width, seed, length, max_return) -> List[List[int]]:
    """Random permutations, each drawn until its ``largest_return`` is at most ``max_return``.

    Raises:
        UserError: none of many draws was.
    """
    generator = torch.Generator().manual_seed(seed)
    found, best = [], 1.0
    for _ in range(heads):
        for _ in range(DRAWS):
            permutation = torch.randperm(width, generator=generator).tolist()
            fraction, _ = largest_return(permutation, length)
            best = min(best, fraction)
            if fraction <= max_return:
                found.append(permutation)
                break
        else:
            raise UserError(
                f"max_return={max_return:g}: of {DRAWS:,} permutations of {width} features "
                f"none has so few back at their place at every distance below {length}; the "
                f"best has {best:.2f}. More features (width=, m=) can have less"
            )
    return found


@register("permute", "permuteformer")
class Permute(Scheme):
    """Features permuted by position, weights decaying with distance (PermuteFormer)."""

    family = QUERY_KEY_MAP
    places = ("query/key map", "decay")
    paper = "Chen 2021"
    translation_invariant = True

    @dataclass(frozen=True)
    class Options:
        """
        Attributes:
            permutation: permute; false for the decay alone.
            decay: r_h = sigmoid(2 + 3h / H) for causal attention, h = 0 … H − 1; false for 1.
            seed: of the permutations.
            per_layer: every layer has its own permutations.
            max_return: the largest fraction of a head's features that may be back at their
                place at any distance within the training length; none for no limit.
        """

        permutation: bool = True
        decay: bool = True
        seed: int = 1
        per_layer: bool = False
        max_return: Optional[float] = None

        def __post_init__(self):
            if not (self.permutation or self.decay):
                raise UserError(
                    "permutation=false with decay=false leaves nothing; that is 'none'"
                )
            check_seed(self.seed)
            if self.max_return is not None and not 0 <= self.max_return < 1:
                raise UserError(
                    f"max_return={self.max_return:g} is a fraction: 0 or more, below 1"
                )
            if self.max_return is not None and not self.permutation:
                raise UserError("max_return has no use with permutation=false: leave it out")

    @property
    def decays(self):
        return self.options.decay

    def query_key_map(self, size, layer):
        if not (self.options.permutation or size.causal):
            raise UserError(
                f"'{self}' is a decay alone, which attention to both sides does not have: one "
                "side would grow without end. Leave permutation=false out"
            )
        if not self.options.permutation:
            return None
        return Permutations(torch.tensor(self._drawn(size, layer)))

    def log_decay(self, size):
        if not (self.options.decay and size.causal):
            return None
        h = torch.arange(size.heads, dtype=torch.float64)
        return F.logsigmoid(2 + 3 * h / size.heads)

    def caution(self, size):
        if not self.options.permutation:
            return None
        heads = heads_that_return(self._drawn(size, layer=0), size.max_positions)
        if not heads:
            return None
        return (
            f"permute: in {len(heads)} of {size.heads} heads nearly all {size.key_dim} "
            "features are back at their place at some distance below "
            f"{size.max_positions} tokens, where the permutation tells nothing "
            f"({', '.join(heads)}); max_return=0.7 draws others"
        )

    def _drawn(self, size, layer):
        options, seed = self.options, (self.options.seed + layer) % 2**64
        if options.max_return is None:
            return draw(size.heads, size.key_dim, seed)
        return draw_below(
            size.heads, size.key_dim, seed, size.max_positions, options.max_return
        )
