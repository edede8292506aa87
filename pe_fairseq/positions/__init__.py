"""What a position is: the schemes, their registry and spec text, and position ids.

This package and ``pe_fairseq.attention`` import torch only.
"""

from . import learned, none, sinusoidal  # noqa: F401  registers the schemes
from .beyond import Beyond
from .ids import PositionIds
from .registry import ALIASES, SCHEMES, find, register
from .scheme import ModelSize, NoOptions, Scheme
from .spec import parse

__all__ = [
    "ALIASES",
    "SCHEMES",
    "Beyond",
    "ModelSize",
    "NoOptions",
    "PositionIds",
    "Scheme",
    "find",
    "parse",
    "register",
]
