"""How tokens attend. Imports torch and positions only."""

from .plain import visible_keys
from .softmax import softmax_attention
from .spec import ATTENTION, Performer, Softmax, parse

__all__ = [
    "ATTENTION",
    "Performer",
    "Softmax",
    "parse",
    "softmax_attention",
    "visible_keys",
]
