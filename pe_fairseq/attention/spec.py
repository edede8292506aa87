"""Spec text of attention: ``softmax``, or ``performer`` with its options::

performer(features=favor,m=256)
"""

from dataclasses import dataclass
from typing import ClassVar, Optional

import torch

from ..errors import UserError, nearest
from ..spec_text import read_options, refuse_references, split_call, write_call
from .features import FEATURES, FeatureMap

M = 256
REDRAW = 1000


@dataclass(frozen=True)
class Softmax:
    """Softmax attention, which has no options (Vaswani et al. 2017, eq. 1)."""

    name: ClassVar[str] = "softmax"
    linear: ClassVar[bool] = False

    def __str__(self):
        return write_call(self.name, self)


@dataclass(frozen=True)
class Performer:
    """Linear attention with a feature map (Choromanski et al. 2021).

    Attributes:
        features: the feature map: ``relu``, ``elu``, ``favor`` or ``favor-relu``.
        m: how many random features; None for 256.
        redraw: updates between two draws of the random features, 0 for one draw; None for
            1000.
        epsilon: what ``relu`` and ``favor-relu`` add to each feature; None for 0.001.
        normalize: divide by the sum of the weights.
        width: queries and keys are so many times as wide as values.

    Raises:
        UserError: an option is out of range, or the feature map has no use for it.
    """

    features: str = "relu"
    m: Optional[int] = None
    redraw: Optional[int] = None
    epsilon: Optional[float] = None
    normalize: bool = True
    width: int = 1

    name: ClassVar[str] = "performer"
    linear: ClassVar[bool] = True

    def __post_init__(self):
        if self.features not in FEATURES:
            raise UserError(
                f"features={self.features} is no feature map"
                f"{nearest(self.features, FEATURES)}; there are: {', '.join(FEATURES)}"
            )
        feature_map = FEATURES[self.features]
        for option in ("m", "redraw"):
            if getattr(self, option) is not None and not feature_map.random:
                raise UserError(
                    f"'{self.features}' features are not random: leave {option} out"
                )
        if self.epsilon is not None and feature_map.epsilon is None:
            raise UserError(f"'{self.features}' features have no epsilon: leave it out")
        if self.m is not None and self.m < 1:
            raise UserError(f"m={self.m} random features: it must be 1 or more")
        if self.redraw is not None and self.redraw < 0:
            raise UserError(f"redraw={self.redraw} must be 0 (one draw) or more updates")
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise UserError(f"epsilon={self.epsilon:g} must be above 0: weights are positive")
        if self.width < 1:
            raise UserError(f"width={self.width} must be 1 or more")
        if feature_map.scaled and not self.normalize:
            raise UserError(
                f"'{self.features}' features are known up to a factor, which normalising takes "
                "out: leave normalize=false out"
            )

    def __str__(self):
        return write_call(self.name, self)

    def feature_map(self, head_dim: int, generator: torch.Generator) -> FeatureMap:
        """The feature map of one layer, for queries and keys of ``width · head_dim``.

        Random features are drawn from ``generator``.
        """
        feature_map = FEATURES[self.features]
        options = {"width": self.width * head_dim}
        if feature_map.epsilon is not None:
            options["epsilon"] = self.epsilon or feature_map.epsilon
        if feature_map.random:
            options["m"] = self.m or M
            options["redraw"] = REDRAW if self.redraw is None else self.redraw
            options["generator"] = generator
        return feature_map(**options)


ATTENTION = {kind.name: kind for kind in (Softmax, Performer)}


def parse(text: str):
    """The ``Softmax`` or ``Performer`` that ``text`` describes.

    Raises:
        UserError: the text does not parse, names an attention or option that does not exist,
            or gives a value of the wrong type or out of range.
    """
    refuse_references("attention", text)
    name, inside = split_call("attention", text, text)
    if name not in ATTENTION:
        raise UserError(
            f"unknown attention '{name}'{nearest(name, ATTENTION)}; "
            f"there are: {', '.join(ATTENTION)}"
        )
    return read_options(name, ATTENTION[name], inside, aliases={})
