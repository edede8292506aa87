"""Softmax attention against loops in float64."""

import math

import pytest
import torch

from pe_fairseq.attention import softmax_attention

BATCH, HEADS, DIM = 2, 2, 4


def by_loops(query, key, value, causal, padding, bias):
    """softmax(q·k/√d + bias)·v over the keys that a query may see, one query at a time.

    A query always sees its own position. Returns output, differentiable, and weights.
    """
    queries, keys = query.size(2), key.size(2)
    output = torch.zeros(query.shape, dtype=torch.float64)
    weights = torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.float64)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(queries):
                own = keys - queries + i
                seen = [
                    j
                    for j in range(keys)
                    if j == own
                    or (
                        not (causal and j > own) and not (padding is not None and padding[b, j])
                    )
                ]
                scores = []
                for j in seen:
                    score = sum(query[b, h, i, d] * key[b, h, j, d] for d in range(DIM))
                    score = score / math.sqrt(DIM)
                    scores.append(score + (0 if bias is None else bias[h, i, j]))
                exps = [torch.exp(score) for score in scores]
                shares = [e / sum(exps) for e in exps]
                for j, share in zip(seen, shares):
                    weights[b, h, i, j] = share.detach()
                for d in range(DIM):
                    output[b, h, i, d] = sum(
                        share * value[b, h, j, d] for j, share in zip(seen, shares)
                    )
    return output, weights


def random(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


PADDING = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 1]]).bool()


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "weights"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize("queries", [6, 3, 1])
def test_output_weights_and_gradients(queries, causal, padding, with_bias, need_weights):
    keys = 6
    inputs = [
        random(BATCH, HEADS, queries, DIM, seed=1),
        random(BATCH, HEADS, keys, DIM, seed=2),
        random(BATCH, HEADS, keys, DIM, seed=3),
    ]
    bias = random(HEADS, queries, keys, seed=4) if with_bias else None
    leaves = inputs + ([bias] if with_bias else [])
    expected, expected_weights = by_loops(*inputs, causal, padding, bias)
    output, weights = softmax_attention(
        *inputs,
        causal=causal,
        key_padding_mask=padding,
        attn_mask=bias,
        need_weights=need_weights,
    )
    assert torch.allclose(output, expected, atol=1e-10)
    if need_weights:
        assert torch.allclose(weights, expected_weights, atol=1e-10)
    else:
        assert weights is None

    direction = random(*output.shape, seed=5).detach()
    got = torch.autograd.grad((output * direction).sum(), leaves)
    want = torch.autograd.grad((expected * direction).sum(), leaves)
    for ours, theirs in zip(got, want):
        assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_drops_weights_and_scales_the_rest(need_weights):
    torch.manual_seed(0)
    length = 64
    query = torch.zeros(1, 1, length, length)  # equal weights
    value = torch.eye(length)[None, None]
    output, _ = softmax_attention(query, query, value, dropout=0.25, need_weights=need_weights)
    kept = output[0, 0] > 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert torch.allclose(output[0, 0][kept], torch.tensor(1 / length / 0.75))


def test_weights_of_half_precision_are_float32():
    query = torch.randn(1, 1, 5, 4).bfloat16()
    output, weights = softmax_attention(query, query, query, need_weights=True)
    assert output.dtype == torch.bfloat16 and weights.dtype == torch.float32


def test_weights_are_those_before_dropout():
    query = torch.randn(1, 1, 5, 4)
    _, weights = softmax_attention(query, query, query, dropout=0.9, need_weights=True)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 1, 5))
