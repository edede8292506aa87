"""Which way softmax attention goes for a call, and why."""

import enum
import functools
import logging

import torch

from .flex import flex_serves

logger = logging.getLogger(__name__)


class Way(enum.Enum):
    FUSED = "torch's fused kernels"
    BLOCKED = "blocks of queries"
    FLEX = "flex attention"
    ONE_QUERY = "tables for one query"
    PLAIN = "the plain formula"


def choose(
    query, positions, *, causal, padding, attn_mask, dropout, need_weights, decoding
) -> Way:
    """The fastest way that serves a call; see ``softmax_attention`` for the arguments.

    Args:
        positions: with terms, or None.
        decoding: the call is part of an incremental decoding.
    """
    way, reason = _choose(query, positions, padding, attn_mask, dropout, need_weights)
    if way is Way.BLOCKED and positions is not None:
        gradient = torch.is_grad_enabled()
        if decoding and query.size(2) == 1 and causal and not dropout and not gradient:
            way = Way.ONE_QUERY
        elif flex_serves(query, positions, dropout):
            way = Way.FLEX
    _tell(way, reason, query.device)
    return way


def _choose(query, positions, padding, attn_mask, dropout, need_weights):
    if need_weights:
        return Way.PLAIN, "the weights are asked for"
    if positions is None:
        on_cpu = query.device.type == "cpu"
        # with dropout, the fused kernels drop the weights that stock fairseq drops
        if on_cpu and padding is not None and attn_mask is None and not dropout:
            if query.size(2) > 1:
                return Way.BLOCKED, "torch's fused CPU kernels are slower with a mask"
        return Way.FUSED, "positions add nothing"
    if attn_mask is not None:
        return Way.PLAIN, "scores are given beside those of positions"
    if not positions.by_distance:
        return Way.PLAIN, "positions add more than a number or a vector per distance"
    if padding is not None and _has_gaps(padding):
        return Way.PLAIN, "padding stands between the real tokens of a row"
    return Way.BLOCKED, "positions add by distance"


@functools.cache
def _tell(way, reason, device):
    """Log a choice, the first time that it is made."""
    logger.debug("softmax attention by %s on %s: %s", way.value, device, reason)


def _has_gaps(padding):
    """True where padding ``(batch, key_len)`` stands between real tokens of a row."""
    real = ~padding
    begins = real[:, :1].sum(1) + (real[:, 1:] & padding[:, :-1]).sum(1)
    return bool((begins > 1).any())
