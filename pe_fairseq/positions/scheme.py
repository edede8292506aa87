"""What every position scheme is: one small class, at most one module per place.

Letters for shapes: B batch, L length, D embed_dim.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Optional

import torch
from torch import nn

from ..errors import UserError


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that its position modules need.

    Attributes:
        embed_dim: width of the token embeddings (D).
        max_positions: how many positions the model is trained with; the rows of a table.
        unused_rows: rows before position 0 in a table, ``padding_idx + 1`` in
            fairseq's checkpoints and 0 elsewhere.
    """

    embed_dim: int
    max_positions: int
    unused_rows: int = 0


@dataclass(frozen=True)
class NoOptions:
    """The options of a scheme that has none."""


class Scheme:
    """A position scheme: its options, what it promises, and its module per place.

    A subclass sets the class attributes, and overrides the method of each place
    that it uses. Options are a frozen dataclass; its ``__post_init__`` raises
    ``UserError`` for a value out of range.

    Attributes:
        name: as registered; set by ``register``.
        paper: where the scheme comes from.
        translation_invariant: shifting all position ids by a constant changes nothing.
        bounded: it has no meaning for positions from ``ModelSize.max_positions`` on.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    translation_invariant: ClassVar[bool]
    bounded: ClassVar[bool]
    Options: ClassVar[type] = NoOptions

    def __init__(self, options=None):
        self.options = self.Options() if options is None else options

    def embedding(self, size: ModelSize, generator: torch.Generator) -> Optional[nn.Module]:
        """The module whose vectors are added to the token embeddings, or None.

        It maps ids ``(B or 1, L)`` to vectors ``(B or 1, L, D)``, and draws its
        start from ``generator`` alone.
        """
        return None

    def __str__(self):
        """The spec text that makes this scheme, with the options that are not default."""
        changed = [
            f"{field.name}={_text(getattr(self.options, field.name))}"
            for field in dataclasses.fields(self.options)
            if getattr(self.options, field.name) != field.default
        ]
        return f"{self.name}({','.join(changed)})" if changed else self.name


def check_choice(option, value, choices):
    """Raise UserError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise UserError(f"{option}={value} is not one of {', '.join(choices)}")


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
