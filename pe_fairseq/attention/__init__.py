"""How tokens attend. Imports torch and positions only."""

from .plain import visible_keys
from .softmax import softmax_attention

__all__ = ["softmax_attention", "visible_keys"]
