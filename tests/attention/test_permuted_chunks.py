"""Permutations within the chunks of linear attention: P^i q_i and P^j k_j, by any way."""

import pytest
import torch

from pe_fairseq.attention.linear import State, chunked, recurrent
from pe_fairseq.attention.linear_chunks import CHUNK
from pe_fairseq.positions.permute import Permutations, draw

BATCH, HEADS, FEATURES, HEAD_DIM = 2, 3, 9, 4
LOG_DECAY = torch.tensor([0.1, 0.9, 1.0], dtype=torch.float64).log()
WEIGHTS = torch.Generator().manual_seed(7)


def inputs(length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)
    return [
        torch.rand(
            BATCH, HEADS, length, size, generator=generator, dtype=dtype
        ).requires_grad_()
        for size in (FEATURES, FEATURES, HEAD_DIM)
    ]


def by_repetition(x, permutations, step):
    """(P x)[m] = x[π(m)], once more for each position and ``step`` times each."""
    turned = []
    for position in range(x.size(2)):
        token = x[:, :, position]
        for _ in range(position * step):
            token = torch.stack([token[:, h, p] for h, p in enumerate(permutations)], dim=1)
        turned.append(token)
    return torch.stack(turned, dim=2)


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as it is"])
@pytest.mark.parametrize("log_decay", [None, LOG_DECAY], ids=["no decay", "decay"])
@pytest.mark.parametrize(
    "length, step", [(1, 1), (CHUNK, 3), (CHUNK + 1, 1), (2 * CHUNK + 5, 2)]
)
def test_as_if_features_came_permuted(length, step, log_decay, normalize):
    permutations = draw(HEADS, FEATURES, seed=1)
    powers = Permutations(torch.tensor(permutations)).powers(step)
    query, key, value = leaves = inputs(length)
    options = {"log_decay": log_decay, "normalize": normalize}
    got, _ = chunked(query, key, value, powers=powers, **options)
    want, _ = recurrent(
        by_repetition(query, permutations, step),
        by_repetition(key, permutations, step),
        value,
        **options,
    )
    assert torch.allclose(got, want, atol=1e-10)
    direction = torch.randn(got.shape, generator=WEIGHTS, dtype=got.dtype)
    gradients = [torch.autograd.grad((x * direction).sum(), leaves) for x in (got, want)]
    for ours, theirs in zip(*gradients):
        assert torch.allclose(ours, theirs, atol=1e-9)


@pytest.mark.parametrize("length", [5, CHUNK, CHUNK + 6])
def test_the_state_counts_from_its_own_place(length):
    """What follows goes on from it as if a text began there, and its gradient comes back."""
    powers = Permutations(torch.tensor(draw(HEADS, FEATURES, seed=2))).powers(1)
    leaves = inputs(length + CHUNK + 2)
    whole, end = chunked(*leaves, log_decay=LOG_DECAY, powers=powers)
    parts, state = [], None
    for part in (slice(0, length), slice(length, None)):
        of_part = (x[:, :, part] for x in leaves)
        output, state = chunked(*of_part, state, log_decay=LOG_DECAY, powers=powers)
        parts.append(output)
    assert torch.allclose(torch.cat(parts, dim=2), whole)
    for ours, theirs in zip(state[:2], end[:2]):
        assert torch.allclose(ours, theirs)
    totals = [
        output.sin().sum() + after.values.sin().sum() + after.normaliser.cos().sum()
        for output, after in ((torch.cat(parts, dim=2), state), (whole, end))
    ]
    for ours, theirs in zip(*(torch.autograd.grad(total, leaves) for total in totals)):
        assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("offset, step", [(0, 1), (11, 3)])
def test_placed_it_is_the_state_of_permuted_features(offset, step):
    """Where decoding goes on by ids, whose permutations count from position 0."""
    permutations = Permutations(torch.tensor(draw(HEADS, FEATURES, seed=3)))
    length = CHUNK + 9
    query, key, value = inputs(length)
    _, state = chunked(query, key, value, powers=permutations.powers(step))
    prepared = permutations.prepare(offset + step * torch.arange(length)[None])
    _, want = recurrent(*permutations(query, key, prepared), value)
    end = offset + step * length
    placed = State(
        permutations.placed(state.values, end),
        permutations.placed(state.normaliser.unsqueeze(-1), end).squeeze(-1),
    )
    for ours, theirs in zip(placed[:2], want[:2]):
        assert torch.allclose(ours, theirs)


def test_powers_follow_the_permutations_of_a_checkpoint():
    """What is kept of them goes when others are loaded."""
    ours, loaded = (Permutations(torch.tensor(draw(HEADS, FEATURES, seed))) for seed in (4, 5))
    ours.powers(1)
    ours.load_state_dict(loaded.state_dict())
    assert torch.equal(ours.powers(1).forth, loaded.powers(1).forth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_text_stays_finite(dtype):
    """65,536 tokens, decays and permutations of a PermuteFormer."""
    heads, features, length = 8, 16, 65_536
    generator = torch.Generator().manual_seed(0)
    leaves = [
        torch.rand(1, heads, length, size, generator=generator).to(dtype).requires_grad_()
        for size in (features, features, 4)
    ]
    log_decay = torch.nn.functional.logsigmoid(2 + 3 * torch.arange(heads) / heads)
    powers = Permutations(torch.tensor(draw(heads, features, seed=1))).powers(1)
    output, _ = chunked(*leaves, log_decay=log_decay, powers=powers)
    assert output.isfinite().all() and 0 <= output.min() and output.max() <= 1.01
    output.float().square().sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)
