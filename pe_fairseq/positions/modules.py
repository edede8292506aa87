"""A scheme's modules, made for one model: an embedding, and positions for each layer."""

from typing import Callable, List, Optional

import torch
from torch import Tensor, nn

from ..errors import UserError
from .relative import Relative, RelativeVectors, ScalarBias
from .scheme import ModelSize, Scheme


class LayerPositions(nn.Module):
    """What one attention layer gets from a scheme.

    Attributes:
        query_key_map: the map of queries and keys, or None.
        terms: what is added by distance.
        biases: of these, the ones that add one number per distance to the scores.
        vectors: the first that has a vector per distance, or None.
        by_distance: ``biases`` and ``vectors`` say all that the terms add.
        adds_to_values: a term adds to the values too.
        log_decay: log r of each head, ``(H,)`` in float64, or None. It is no buffer, which
            half precision would round.

    Raises:
        UserError: a decay outside (0, 1].
    """

    def __init__(self, query_key_map, terms, log_decay=None):
        super().__init__()
        if log_decay is not None and not (log_decay.isfinite() & (log_decay <= 0)).all():
            decays = ", ".join(f"{r:g}" for r in log_decay.exp().tolist())
            raise UserError(f"decays must be above 0 and at most 1, not {decays}")
        self.query_key_map = query_key_map
        self.log_decay = log_decay
        self.terms = nn.ModuleList(terms)
        with_vectors = [term for term in terms if isinstance(term, RelativeVectors)]
        self.by_distance = len(with_vectors) <= 1 and all(map(_by_distance, terms))
        self.adds_to_values = any(term.adds_to_values for term in terms)

    @property
    def biases(self) -> List[ScalarBias]:
        return [term for term in self.terms if isinstance(term, ScalarBias)]

    @property
    def vectors(self) -> Optional[RelativeVectors]:
        return next((term for term in self.terms if isinstance(term, RelativeVectors)), None)

    def score(self, query: Tensor, relative: Relative) -> Tensor:
        """The sum of what is added to the scores: ``(B or 1, H, Q, K)``."""
        return sum(term.score(query, relative) for term in self.terms)

    def value(self, weights: Tensor, relative: Relative) -> Tensor:
        """The sum of what is added to the output: ``(B, H, Q, head_dim)``."""
        return sum(t.value(weights, relative) for t in self.terms if t.adds_to_values)


def _by_distance(term):
    """True where all that ``term`` adds follows from its number or vector per distance."""
    for kind in (ScalarBias, RelativeVectors):
        if isinstance(term, kind):
            return type(term).score is kind.score and type(term).value is kind.value
    return False


def build_embedding(
    scheme: Scheme, size: ModelSize, generator: Callable[[str], torch.Generator]
) -> Optional[nn.Module]:
    """The embedding module of ``scheme``, or None.

    Every part draws from a fresh ``generator(name of the part)``: a table starts the same,
    whatever it is combined with.
    """
    for part in scheme.parts:
        embedding = part.embedding(size, generator(part.name))
        if embedding is not None:
            return embedding
    return None


def build_layers(
    scheme: Scheme, size: ModelSize, generator: Callable[[str], torch.Generator]
) -> List[Optional[LayerPositions]]:
    """The positions of every layer; None where the scheme has nothing for a layer."""
    maps = [_maps(part, size) for part in scheme.parts]
    terms = [_terms(part, size, generator(part.name)) for part in scheme.parts]
    log_decay = _first(part.log_decay(size) for part in scheme.parts)
    layers = []
    for maps_of_layer, terms_of_layer in zip(zip(*maps), zip(*terms)):
        query_key_map = _first(maps_of_layer)
        present = [term for term in terms_of_layer if term is not None]
        if query_key_map is None and not present and log_decay is None:
            layers.append(None)
        else:
            layers.append(LayerPositions(query_key_map, present, log_decay))
    return layers


def _first(found):
    return next((x for x in found if x is not None), None)


def _maps(part, size):
    if part.per_layer:
        return [part.query_key_map(size, layer) for layer in range(size.layers)]
    return [part.query_key_map(size, 0)] * size.layers


def _terms(part, size, generator):
    if part.per_layer:
        return [part.relative_term(size, generator) for _ in range(size.layers)]
    return [part.relative_term(size, generator)] * size.layers
