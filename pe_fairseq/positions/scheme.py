"""What every position scheme is: one small class, at most one module per place.

Letters for shapes: B batch, H heads, Q query_len, K key_len, L length, D embed_dim.
"""

from dataclasses import dataclass
from typing import ClassVar, Optional, Tuple

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..spec_text import write_call
from .query_key_map import QueryKeyMap
from .relative import RelativeTerm

# Two schemes of one family would do one thing twice.
EMBEDDING = "embedding"
RELATIVE_VECTORS = "relative vectors"
SCALAR_BIAS = "scalar bias"
QUERY_KEY_MAP = "query/key map"


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that its position modules need.

    Attributes:
        embed_dim: width of the token embeddings (D).
        max_positions: how many positions the model is trained with; the rows of a table.
        heads: attention heads of a layer (H).
        layers: attention layers that the scheme serves.
        causal: a query sees no later key.
        unused_rows: rows before position 0 in a table, ``padding_idx + 1`` in
            fairseq's checkpoints and 0 elsewhere.
        features: of a query or key of one head, under linear attention; None under softmax.

    Raises:
        UserError: a size is below 1, or the heads do not divide the embedding.
    """

    embed_dim: int
    max_positions: int
    heads: int = 1
    layers: int = 1
    causal: bool = True
    unused_rows: int = 0
    features: Optional[int] = None

    def __post_init__(self):
        for name in ("embed_dim", "max_positions", "heads", "layers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be 1 or more")
        if self.embed_dim % self.heads:
            raise UserError(
                f"embed_dim={self.embed_dim} does not divide into {self.heads} heads"
            )

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.heads

    @property
    def key_dim(self) -> int:
        """Width of a query or key of one head where the two meet."""
        return self.head_dim if self.features is None else self.features


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
        family: what two schemes of a combination must not share; None combines
            with nothing.
        places: where it acts: embedding, query/key map, score, value.
        paper: where the scheme comes from.
        translation_invariant: shifting all position ids by a constant changes nothing.
        length_dependent: what it does depends on the total length.
        bounded: it is a table that ends at ``ModelSize.max_positions``; ``Beyond`` has the
            rules for later positions.
        two_sided: it is defined where a query sees later keys.
        needs_scores: it acts on the score matrix, which linear attention never forms.
        decays: weights fall with the distance by ``log_decay``, under linear attention alone.
    """

    name: ClassVar[str]
    family: ClassVar[Optional[str]]
    places: ClassVar[Tuple[str, ...]]
    paper: ClassVar[str]
    translation_invariant: ClassVar[bool]
    length_dependent: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    two_sided: ClassVar[bool] = True
    needs_scores: ClassVar[bool] = False
    decays: bool = False
    Options: ClassVar[type] = NoOptions

    def __init__(self, options=None):
        self.options = self.Options() if options is None else options

    @property
    def parts(self) -> Tuple["Scheme", ...]:
        """The schemes that this one adds up: itself alone, unless it is a combination."""
        return (self,)

    @property
    def per_layer(self) -> bool:
        """Every layer has a relative term of its own; otherwise all share one."""
        return getattr(self.options, "per_layer", False)

    def embedding(self, size: ModelSize, generator: torch.Generator) -> Optional[nn.Module]:
        """The module whose vectors are added to the token embeddings, or None.

        It maps ids ``(B or 1, L)`` to vectors ``(B or 1, L, D)``, and draws its
        start from ``generator`` alone.
        """
        return None

    def query_key_map(self, size: ModelSize, layer: int) -> Optional[QueryKeyMap]:
        """The map of one layer's queries and keys before their product, or None."""
        return None

    def log_decay(self, size: ModelSize) -> Optional[Tensor]:
        """log r of each head, ``(H,)`` in float64, at most 0; None where no weight decays.

        Linear attention multiplies the weight of a key by r at each position of distance.
        """
        return None

    def longest(self, size: ModelSize) -> Optional[int]:
        """How many positions it has a meaning for; None without a limit."""
        return size.max_positions if self.bounded else None

    def refusal(self, position: int) -> Optional[str]:
        """Why it has no such position at any size, or None; its modules raise UserError."""
        return None

    def caution(self, size: ModelSize) -> Optional[str]:
        """What a user of the scheme at this size should know, or None."""
        return None

    def relative_term(
        self, size: ModelSize, generator: torch.Generator
    ) -> Optional[RelativeTerm]:
        """What one layer's scores and values get by the distance of query and key, or None."""
        return None

    def __str__(self):
        """The spec text that makes this scheme, with the options that are not default."""
        return write_call(self.name, self.options)


def check_choice(option, value, choices):
    """Raise UserError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise UserError(f"{option}={value} is not one of {', '.join(choices)}")
