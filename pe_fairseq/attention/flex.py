"""Scores by distance inside one compiled GPU kernel, by torch's flex attention.

For scalar biases and for clipped vectors on keys, whose products with a query are few. The
kernel has neither dropout nor values by distance; blocks of queries serve those.
"""

import functools
import logging
from typing import Callable, Optional

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .blocked import DistanceTerms
from .plain import wide_type

logger = logging.getLogger(__name__)

SMALLEST_HEAD = 16
LARGEST_CLIP = 256  # a query's products with all vectors are kept
COMPILATIONS = 64  # for each kind of terms, masks and gradients; torch's own limit is 8


def flex_serves(query: Tensor, positions, dropout: float) -> bool:
    """True where the kernel exists for ``query`` and can do what ``positions`` adds."""
    vectors = positions.vectors
    return (
        query.device.type == "cuda"
        and query.dtype != torch.float64
        and query.size(-1) >= SMALLEST_HEAD
        and not dropout
        and not positions.adds_to_values
        and (vectors is None or (vectors.clip is not None and vectors.clip <= LARGEST_CLIP))
        and _compiles(query.device)
    )


@functools.cache
def compiled() -> Callable:
    """torch's kernel, compiled when it is called, once for all lengths."""
    kernel = torch.compile(flex_attention, dynamic=True)

    def call(*args, **options):
        with torch._dynamo.config.patch(recompile_limit=COMPILATIONS):
            return kernel(*args, **options)

    return call


@functools.cache
def _compiles(device):
    """True where the kernel and its gradient can be compiled: it needs Triton, a compiler,
    and a GPU that Triton knows."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            query = torch.ones(1, 1, 128, SMALLEST_HEAD, device=device, requires_grad=True)
            compiled()(query, query, query).sum().backward()
    except Exception as error:  # torch has no common class for them
        logger.warning(
            "flex attention does not compile on %s, so blocks of queries are used: %s",
            device,
            str(error).strip().partition("\n")[0],
        )
        return False
    return True


def attend_by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: DistanceTerms,
    *,
    causal: bool,
    key_padding_mask: Optional[Tensor],
    kernel: Callable,
) -> Tensor:
    """Attend; see ``softmax_attention`` for the arguments.

    Args:
        terms: without value vectors.
        kernel: ``compiled()``; or torch's ``flex_attention`` as it stands, which makes all
            scores, on any device.
    """
    first = key.size(2) - query.size(2)
    products = bias = None
    if terms.bias is not None:
        bias = terms.bias.to(wide_type(query))
        shortest = 1 - query.size(2)
    if terms.key_vectors is not None:
        vectors = terms.key_vectors.to(wide_type(query))
        products = terms.query.to(vectors) @ vectors.mT * query.size(-1) ** -0.5
        last = vectors.size(-2) - 1
        lowest = 0 if causal else -last // 2

    def add_terms(score, batch, head, row, column):
        distance = row + first - column
        if bias is not None:
            score = score + bias[head, distance - shortest]
        if products is not None:
            score = score + products[batch, head, row, (distance - lowest).clamp(0, last)]
        if key_padding_mask is not None:
            hidden = key_padding_mask[batch, column] & (distance != 0)
            score = torch.where(hidden, float("-inf"), score)
        return score

    mask = _causal_mask(query.size(2), key.size(2), query.device) if causal else None
    return kernel(query, key, value, score_mod=add_terms, block_mask=mask)


@functools.lru_cache(maxsize=64)
def _causal_mask(query_len, key_len, device):
    first = key_len - query_len

    def seen(batch, head, row, column):
        return column <= row + first

    with torch.inference_mode(False):  # it is kept, and training may be next
        return create_block_mask(seen, None, None, query_len, key_len, device=device)
