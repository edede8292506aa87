"""What a position is: the schemes, their registry and spec text, and position ids.

This package and ``pe_fairseq.attention`` import torch only.
"""

# Importing a scheme's file registers it; tables list the schemes in this order.
# isort: off
from . import none, learned, learned2d, sinusoidal  # noqa: F401
from . import shaw, sinusoidal_relative  # noqa: F401
from . import rotary, permute, permute2d, alibi, t5  # noqa: F401

# isort: on
from .beyond import Beyond
from .ids import PositionIds
from .modules import LayerPositions, build_embedding, build_layers
from .registry import ALIASES, SCHEMES, find, register
from .relative import Relative, RelativeTerm, RelativeVectors, ScalarBias
from .scheme import ModelSize, NoOptions, Scheme
from .spec import parse

__all__ = [
    "ALIASES",
    "SCHEMES",
    "Beyond",
    "LayerPositions",
    "ModelSize",
    "NoOptions",
    "PositionIds",
    "Relative",
    "RelativeTerm",
    "RelativeVectors",
    "ScalarBias",
    "Scheme",
    "build_embedding",
    "build_layers",
    "find",
    "parse",
    "register",
]
