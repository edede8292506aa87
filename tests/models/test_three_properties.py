"""The properties that Chen 2021 asks of a relative position encoding for linear attention.

Decomposable: positions enter as maps of single queries and keys. Relative: what the maps of
positions i and j do to a product depends on i − j alone. Positive: weights stay positive, and
none grows with the length.
"""

import pytest
import torch
from build import LINEAR

from pe_fairseq import positions
from pe_fairseq.attention.linear import chunked, recurrent

HEADS, FEATURES, LENGTH = 3, 8, 80
SIZE = positions.ModelSize(24, max_positions=LENGTH, heads=HEADS, features=FEATURES)
MAPPING = [
    name
    for name in [*LINEAR, "permute(permutation=false)", "permute(decay=false)"]
    if positions.parse(name).translation_invariant and name != "none"
]
mapping = pytest.mark.parametrize("name", MAPPING)


def features(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, HEADS, length, FEATURES, generator=generator, dtype=torch.float64)


def weights(name, query, key, offset=0, normalize=False):
    """What query i gives to key j: ``(B, H, N, N)``, by one-hot values."""
    scheme = positions.parse(name)
    query_key_map = scheme.query_key_map(SIZE, layer=0)
    if query_key_map is not None:
        ids = offset + torch.arange(query.size(2))[None]
        query, key = query_key_map(query, key, query_key_map.prepare(ids))
    one_hot = torch.eye(query.size(2), dtype=query.dtype).expand(*query.shape[:2], -1, -1)
    return chunked(query, key, one_hot, log_decay=scheme.log_decay(SIZE), normalize=normalize)[
        0
    ]


def claims_positive(name):
    query_key_map = positions.parse(name).query_key_map(SIZE, layer=0)
    return query_key_map is None or query_key_map.keeps_sign


def test_there_are_schemes_that_claim_all_three():
    assert {"permute", "rope"} <= set(MAPPING)
    assert claims_positive("permute") and not claims_positive("rope")


@pytest.mark.parametrize("name", [n for n in MAPPING if n != "permute(permutation=false)"])
def test_decomposable(name):
    """A query's map knows its own position alone, and a key's its own: tokens one by one, in
    any company, give what the row gives."""
    query_key_map = positions.parse(name).query_key_map(SIZE, layer=0)
    query, key, ids = (
        features(9, 0),
        features(9, 1),
        torch.tensor([[0, 3, 1, 7, 7, 2, 70, 5, 4]]),
    )
    together = query_key_map(query, key, query_key_map.prepare(ids))
    for i in range(9):
        one = slice(i, i + 1)
        alone = query_key_map(
            query[:, :, one],
            torch.zeros_like(key[:, :, one]),
            query_key_map.prepare(ids[:, one]),
        )
        assert torch.allclose(together[0][:, :, one], alone[0], atol=1e-6)


@mapping
def test_relative(name):
    """Equal features everywhere: one weight per distance, wherever the text begins."""
    query, key = (features(1, seed).expand(-1, -1, LENGTH, -1) for seed in (0, 1))
    found = weights(name, query, key)
    for distance in range(LENGTH):
        diagonal = found.diagonal(-distance, dim1=-2, dim2=-1)
        assert torch.allclose(diagonal, diagonal[..., :1].expand_as(diagonal), atol=1e-5)
    assert torch.allclose(weights(name, query, key, offset=9_000), found, atol=1e-4)
    assert not torch.allclose(found[..., -1, 0], found[..., -1, -1], atol=1e-3)


@pytest.mark.parametrize("name", [name for name in MAPPING if claims_positive(name)])
def test_positive_and_bounded(name):
    """No weight is below 0, or above what the same features give without positions at most."""
    query, key = features(LENGTH, 0), features(LENGTH, 1)
    found = weights(name, query, key)
    assert (found >= 0).all()
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    assert (found[..., later] == 0).all() and (found[..., ~later] > 0).all()
    most = query.norm(dim=-1)[..., :, None] * key.norm(dim=-1)[..., None, :]
    assert (found <= most + 1e-12).all()
    total = weights(name, query, key, normalize=True).sum(-1)
    assert torch.allclose(total, torch.ones_like(total))


def test_rope_does_not_keep_signs_which_its_denominator_must_know():
    query, key = features(LENGTH, 0), features(LENGTH, 1)
    assert (weights("rope", query, key) < -1e-3).any()


def test_weights_are_the_same_token_by_token():
    query, key = features(LENGTH, 0), features(LENGTH, 1)
    scheme = positions.parse("permute")
    one_hot = torch.eye(LENGTH, dtype=query.dtype).expand(2, HEADS, -1, -1)
    query_key_map = scheme.query_key_map(SIZE, layer=0)
    turned = query_key_map(query, key, query_key_map.prepare(torch.arange(LENGTH)[None]))
    stepwise, _ = recurrent(*turned, one_hot, log_decay=scheme.log_decay(SIZE), normalize=False)
    assert torch.allclose(weights("permute", query, key), stepwise)
