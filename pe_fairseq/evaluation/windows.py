"""Which windows of a text a model reads, and which of their tokens count.

A window never leaves its document. Every token of every document is the target of exactly
one window, whatever the window's length, so perplexities at several lengths are of the same
tokens.
"""

from typing import List, NamedTuple, Sequence

from ..errors import UserError

SLIDING, BLOCKS = "sliding", "blocks"
MODES = (SLIDING, BLOCKS)


class Window(NamedTuple):
    """The targets ``start … stop - 1`` of a text, read in one pass.

    Attributes:
        start: first target; the token before it is the first input.
        first: first target that counts; those before it are context.
        stop: one past the last target.
        disjoint: it is of full length, and its targets are in no other disjoint window.
    """

    start: int
    first: int
    stop: int
    disjoint: bool


def default_stride(mode: str, length: int) -> int:
    """Half the window where it slides, so that a target sees at least so much; or all of it."""
    return length if mode == BLOCKS else max(1, length // 2)


def plan(documents: Sequence[int], length: int, stride: int) -> List[Window]:
    """Windows of up to ``length`` tokens over documents of so many tokens.

    Each document is cut into blocks of ``stride`` targets, and each block gets as many
    tokens of context as the window and the document have: with one document these are
    fairseq's ``--tokens-per-sample length --context-window length-stride``.

    Raises:
        UserError: the stride is not from 1 to ``length``.
    """
    if not 1 <= stride <= length:
        raise UserError(f"the stride {stride} must be from 1 to the window of {length} tokens")
    windows = []
    begin = 0
    for tokens in documents:
        end, free = begin + tokens, begin
        for first in range(begin, end, stride):
            stop = min(first + stride, end)
            start = max(begin, first + stride - length)
            disjoint = stop - start == length and start >= free
            if disjoint:
                free = stop
            windows.append(Window(start, first, stop, disjoint))
        begin = end
    return windows
