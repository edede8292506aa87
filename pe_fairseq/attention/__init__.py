"""How tokens attend. Imports torch only."""

from .softmax import softmax_attention, visible_keys

__all__ = ["softmax_attention", "visible_keys"]
