"""Feature maps φ of linear attention, which weighs keys by φ(q) · φ(k) in place of exp(q · k).

``relu`` and ``elu`` act on each dimension; ``favor`` estimates the softmax kernel and
``favor-relu`` a kernel of its own, both with random features.

Letters for shapes: B batch, H heads, L length, W width of a query or key, M features.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .plain import wide_type

FEATURES = {}


def register(name):
    """Class decorator that registers a ``FeatureMap`` as ``name``."""

    def add(feature_map):
        feature_map.name = name
        FEATURES[name] = feature_map
        return feature_map

    return add


class FeatureMap(nn.Module, ABC):
    """Maps the queries and keys of one layer to features that are not negative.

    Attributes:
        name: as registered.
        size: M, how many features.
        random: the map projects on random directions; it takes ``m`` and ``redraw``.
        epsilon: the default of what is added to each feature; None where nothing is.
        scaled: a key's features come with a scale that cancels in normalised outputs alone.
    """

    name: ClassVar[str]
    random: ClassVar[bool] = False
    epsilon: ClassVar[Optional[float]] = None
    scaled: ClassVar[bool] = False
    size: int

    @abstractmethod
    def query(self, x: Tensor) -> Tensor:
        """The features of queries ``(B, H, L, W)``: ``(B, H, L, M)``, up to one factor each."""

    def key(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """The features of keys ``(B, H, L, W)``, and their scale.

        Returns:
            features ``(B, H, L, M)``, to be multiplied by exp of ``(B, H, L)``; None for 1.
        """
        return self.query(x), None


@register("relu")
class Relu(FeatureMap):
    """ReLU(x) + ε (PermuteFormer's released code; Choromanski et al. 2021, §4.3)."""

    epsilon = 1e-3

    def __init__(self, width, epsilon):
        super().__init__()
        self.size = width
        self.epsilon = epsilon

    def query(self, x):
        return F.relu(x) + self.epsilon


@register("elu")
class Elu(FeatureMap):
    """ELU(x) + 1 (Katharopoulos et al. 2020, eq. 7)."""

    def __init__(self, width):
        super().__init__()
        self.size = width

    def query(self, x):
        return F.elu(x) + 1


class RandomFeatures(FeatureMap):
    """Projects on m random directions, orthogonal in blocks of W (Choromanski 2021, §2.4).

    The directions of a layer are the same for all its heads. While training they are drawn
    anew every ``redraw`` updates, on every worker the same; a checkpoint holds them.

    Args:
        width: W.
        m: M.
        redraw: updates between two draws; 0 for one draw.
        generator: gives the seed of all draws.
    """

    random = True

    def __init__(self, width, m, redraw, generator):
        super().__init__()
        self.size = m
        self.redraw = redraw
        self.register_buffer("seed", torch.randint(2**62, (), generator=generator))
        self.register_buffer("draws", torch.zeros((), dtype=torch.long))
        self.register_buffer("directions", torch.empty(m, width))
        self._draw(0)

    def set_num_updates(self, num_updates: int):
        """Draw anew if it is time; fairseq's trainer calls this after each update."""
        if self.redraw and self.training:
            number = num_updates // self.redraw
            if number != int(self.draws):
                self._draw(number)

    def _draw(self, number):
        generator = torch.Generator().manual_seed(int(self.seed) + number)
        self.directions.copy_(orthogonal_directions(*self.directions.shape, generator))
        self.draws.fill_(number)

    def project(self, x: Tensor) -> Tensor:
        """``(B, H, L, W)`` to ``(B, H, L, M)``, in float32 or wider."""
        wide = wide_type(x)
        return x.to(wide) @ self.directions.to(wide).T


@register("favor")
class Favor(RandomFeatures):
    """FAVOR+, positive random features of the softmax kernel (Choromanski et al. 2021, eq. 7).

        φ(x) = exp(ω_r · x − |x|² / 2) / √m  for r = 1 … m,  where x is q or k over W^(1/4)

    The expectation of φ(q) · φ(k) is exp(q · k / √W). So that no exponent is large, each
    token's largest is taken out: for a query it cancels, for a key it is the scale.
    """

    scaled = True

    def query(self, x):
        return self.key(x)[0]

    def key(self, x):
        x = x.to(wide_type(x)) * x.size(-1) ** -0.25
        exponents = self.project(x) - x.square().sum(-1, keepdim=True) / 2
        largest = exponents.detach().amax(-1, keepdim=True)
        return (exponents - largest).exp() * self.size**-0.5, largest.squeeze(-1)


@register("favor-relu")
class FavorRelu(RandomFeatures):
    """ReLU of a random projection, plus ε (Choromanski et al. 2021, §4.3)."""

    epsilon = 1e-3

    def __init__(self, width, epsilon, m, redraw, generator):
        super().__init__(width, m, redraw, generator)
        self.epsilon = epsilon

    def query(self, x):
        return F.relu(self.project(x)) + self.epsilon


def orthogonal_directions(m: int, width: int, generator: torch.Generator) -> Tensor:
    """Directions ``(m, width)``: orthogonal in blocks of ``width``, Gaussian in length.

    Each alone is a Gaussian vector; float64.
    """
    blocks = -(-m // width)
    gaussian = torch.randn(blocks, width, width, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(gaussian)
    # with these signs, every orthogonal basis is equally likely
    basis = basis * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(m, width, generator=generator, dtype=torch.float64).norm(dim=-1)
    return basis.mT.flatten(0, 1)[:m] * lengths.unsqueeze(-1)
