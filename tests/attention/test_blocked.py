"""Blocked attention: small blocks against loops in float64; dropout; memory; the choice."""

import logging
import math

import pytest
import torch
from build import SOFTMAX

from pe_fairseq import positions
from pe_fairseq.attention import blocks, choice, softmax_attention
from pe_fairseq.attention.blocked import DistanceTerms, blocked_attention
from pe_fairseq.models.self_attention import SelfAttention
from pe_fairseq.positions import ModelSize, PositionIds

BATCH, HEADS, DIM = 2, 2, 3
LEFT = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]]).bool()
RIGHT = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1]]).bool()
KINDS = [("", None), ("bias", None)] + [
    (kinds, reach)
    for kinds in ("keys", "values", "keys values", "keys values heads bias rotated")
    for reach in (1, 4, 7)
]
PADDINGS = {"full": None, "left": LEFT, "right": RIGHT}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 3)


def random(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def by_loops(query, key, value, terms, reach, causal, padding):
    """The formula, one query at a time. Outputs ``(BATCH, HEADS, queries, DIM)``."""
    queries, keys = query.size(2), key.size(2)

    def vector(table, head, m):
        m = max(-reach, min(reach, m))
        row = m if causal else m + reach
        return table[head][row] if table.dim() == 3 else table[row]

    rows = []
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(queries):
                here = keys - queries + i
                scores, values = [], []
                for j in range(keys):
                    hidden = padding is not None and padding[b, j]
                    if j != here and (hidden or (causal and j > here)):
                        continue
                    m = here - j
                    score = query[b, h, i] @ key[b, h, j]
                    attended = value[b, h, j]
                    if terms.key_vectors is not None:
                        score = score + terms.query[b, h, i] @ vector(terms.key_vectors, h, m)
                    if terms.value_vectors is not None:
                        attended = attended + vector(terms.value_vectors, h, m)
                    score = score / math.sqrt(DIM)
                    if terms.bias is not None:
                        score = score + terms.bias[h, m - (1 - queries)]
                    scores.append(score)
                    values.append(attended)
                exps = torch.exp(torch.stack(scores))
                rows.append((exps[:, None] * torch.stack(values)).sum(0) / exps.sum())
    return torch.stack(rows).view(BATCH, HEADS, queries, DIM)


def given(queries, keys, reach, causal, kinds):
    """Random inputs and the terms called ``kinds``."""
    q = random(BATCH, HEADS, queries, DIM, seed=1)
    k, v = (random(BATCH, HEADS, keys, DIM, seed=seed) for seed in (2, 3))
    distances = None if reach is None else reach + 1 if causal else 2 * reach + 1
    shape = (HEADS, distances, DIM) if "heads" in kinds else (distances, DIM)
    terms = DistanceTerms(
        bias=random(HEADS, queries + keys - 1, seed=4) if "bias" in kinds else None,
        query=random(BATCH, HEADS, queries, DIM, seed=5) if "rotated" in kinds else q,
        key_vectors=random(*shape, seed=6) if "keys" in kinds else None,
        value_vectors=random(*shape, seed=7) if "values" in kinds else None,
    )
    leaves = [q, k, v, terms.bias, terms.key_vectors, terms.value_vectors]
    if "rotated" in kinds:
        leaves.append(terms.query)
    return q, k, v, terms, [leaf for leaf in leaves if leaf is not None]


@pytest.mark.parametrize(("kinds", "reach"), KINDS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize(("queries", "padding"), [(8, p) for p in PADDINGS] + [(4, "full")])
def test_output_and_every_gradient(queries, padding, causal, reach, kinds):
    q, k, v, terms, leaves = given(queries, 8, reach, causal, kinds)
    masks = {"causal": causal, "key_padding_mask": PADDINGS[padding]}
    expected = by_loops(q, k, v, terms, reach, causal, PADDINGS[padding])
    output = blocked_attention(q, k, v, terms, **masks)
    real = torch.ones(BATCH, 8, dtype=torch.bool)
    if PADDINGS[padding] is not None:
        real = ~PADDINGS[padding]
    real = real[:, None, -queries:, None].expand_as(output)
    assert output.isfinite().all()
    assert torch.allclose(output[real], expected[real], atol=1e-10)

    direction = random(*output.shape, seed=9).detach() * real
    got = torch.autograd.grad((output * direction).sum(), leaves)
    want = torch.autograd.grad((expected * direction).sum(), leaves)
    for ours, theirs in zip(got, want):
        assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_numerical_gradients(dropout, causal):
    """With dropout, they exist only if the backward pass drops the same weights."""
    _, _, _, terms, leaves = given(5, 7, 2, causal, "bias keys values rotated")

    def attend(q, k, v, bias, keys, values, term_query):
        torch.manual_seed(0)
        terms = DistanceTerms(bias, term_query, keys, values)
        return blocked_attention(q, k, v, terms, causal=causal, dropout=dropout)

    assert torch.autograd.gradcheck(attend, leaves)


def test_dropout_drops_weights_and_scales_the_rest():
    """Value vectors are dropped with the weights; what is kept counts 1 / (1 − p)."""
    length, p = 40, 0.25
    torch.manual_seed(0)
    query = torch.randn(1, 1, length, length)
    value = torch.eye(length).expand(1, 1, -1, -1)
    weights = blocked_attention(query, query, value, causal=True)[0, 0]
    torch.manual_seed(3)
    kept = blocked_attention(query, query, value, causal=True, dropout=p)[0, 0]
    seen = torch.ones(length, length).tril().bool()
    dropped = (kept == 0) & seen
    assert dropped.sum() / seen.sum() == pytest.approx(p, abs=0.05)
    assert torch.allclose(kept[~dropped], weights[~dropped] / (1 - p), atol=1e-6)

    vectors = torch.randn(6, length)
    torch.manual_seed(3)
    output = blocked_attention(
        query,
        query,
        value,
        DistanceTerms(value_vectors=vectors),
        causal=True,
        dropout=p,
    )
    distance = torch.arange(length)[:, None] - torch.arange(length)
    spread = torch.einsum("ij,ijd->id", kept, vectors[distance.clamp(0, 5)])
    assert torch.allclose(output[0, 0], kept + spread, atol=1e-5)


def test_all_weights_may_be_dropped():
    query = torch.randn(1, 1, 8, 4)
    output = blocked_attention(query, query, query, causal=True, dropout=1.0)
    assert torch.equal(output, torch.zeros_like(output))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    """A bias of 300 and more has steps of 2 in bfloat16; it must not be rounded."""
    length = 400
    q, k, v = (random(1, 1, length, 8, seed=seed).detach().to(dtype) for seed in range(3))
    bias = -torch.arange(1 - length, length).abs().float()[None]
    wide = [x.double() for x in (q, k, v)]
    expected = blocked_attention(*wide, DistanceTerms(bias=bias.double()))
    output = blocked_attention(q, k, v, DistanceTerms(bias=bias - 300))
    assert output.dtype == dtype
    assert torch.allclose(output.double(), expected, atol=2e-2, rtol=1e-2)


def test_no_weight_is_a_denormal_number():
    """They would slow down every product that follows."""
    length = 300
    query, value = torch.zeros(1, 1, length, length), torch.eye(length).expand(1, 1, -1, -1)
    bias = -torch.arange(1 - length, length).abs().float()[None]
    weights = blocked_attention(query, query, value, DistanceTerms(bias=bias), causal=True)
    assert ((weights == 0) | (weights >= 1e-30)).all()
    assert (weights.sum(-1) - 1).abs().max() < 1e-6


def layer(spec, heads=HEADS, dim=16, causal=True):
    torch.manual_seed(0)
    attention = SelfAttention(dim, heads, causal=causal)
    size = ModelSize(dim, max_positions=1024, heads=heads, causal=causal)
    (part,) = positions.build_layers(
        positions.parse(spec), size, lambda name: torch.Generator().manual_seed(1)
    )
    if part is not None:
        attention.set_positions(part, PositionIds())
    return attention


@pytest.mark.parametrize("spec", SOFTMAX)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
def test_nothing_of_query_len_times_key_len_is_kept(spec, causal, monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 64)
    length, kept = 1026, []  # what permute2d takes where tokens see later ones
    attention = layer(spec, causal=causal)
    x = torch.randn(length, 1, 16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        output, _ = attention(x, need_weights=False)
    output.sum().backward()
    assert kept and max(kept) < length * length


CALLS = {
    "nothing added": ("none", {}, choice.Way.FUSED),
    "a rotation": ("rope", {}, choice.Way.FUSED),
    "padding": ("none", {"key_padding_mask": LEFT}, choice.Way.BLOCKED),
    "a bias": ("alibi", {}, choice.Way.BLOCKED),
    "vectors": ("shaw", {}, choice.Way.BLOCKED),
    "padding and vectors": ("shaw", {"key_padding_mask": LEFT}, choice.Way.BLOCKED),
    "weights": ("shaw", {"need_weights": True}, choice.Way.PLAIN),
    "weights of heads": ("alibi", {"need_head_weights": True}, choice.Way.PLAIN),
    "scores": ("t5", {"attn_mask": torch.zeros(8, 8)}, choice.Way.PLAIN),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_choice_is_logged(call, caplog):
    spec, options, way = CALLS[call]
    choice._tell.cache_clear()
    options = {"need_weights": False, **options}
    with caplog.at_level(logging.DEBUG, logger=choice.__name__):
        layer(spec)(torch.randn(8, 2, 16), **options)
    assert f"softmax attention by {way.value} on cpu: " in caplog.text


@torch.no_grad()
def test_padding_between_real_tokens_goes_by_the_plain_formula(caplog):
    choice._tell.cache_clear()
    gap = torch.tensor([[0, 0, 1, 1, 0, 0, 0, 0]] * 2).bool()
    with caplog.at_level(logging.DEBUG, logger=choice.__name__):
        layer("shaw")(torch.randn(8, 2, 16), key_padding_mask=gap, need_weights=False)
    assert "the plain formula on cpu: padding stands between" in caplog.text


def test_a_term_of_another_kind_goes_by_the_plain_formula(caplog):
    class Half(positions.RelativeTerm):
        def score(self, query, relative):
            return torch.zeros_like(relative.index, dtype=torch.float32).unsqueeze(1)

    choice._tell.cache_clear()
    query = torch.randn(2, 2, 8, 4)
    part = positions.LayerPositions(None, [Half()])
    with caplog.at_level(logging.DEBUG, logger=choice.__name__):
        output, _ = softmax_attention(query, query, query, part, causal=True)
    assert "the plain formula" in caplog.text
    plain, _ = softmax_attention(query, query, query, causal=True)
    assert torch.allclose(output, plain, atol=1e-6)


def vectors(values=True, seed=1, distances=3):
    class Vectors(positions.RelativeVectors):
        def __init__(self):
            super().__init__(values, clip=distances - 1)
            self.table = random(2 * distances - 1, DIM, seed=seed)

        def key_vectors(self, near):
            return self.table[near.clamp(-self.clip, self.clip) + self.clip]

        value_vectors = key_vectors

    return Vectors()


def bias_with_values():
    class Bias(positions.ScalarBias):
        adds_to_values = True

        def per_distance(self, distances):
            return distances.double().expand(HEADS, -1)

        def value(self, weights, relative):
            return weights.sum(-1, keepdim=True)

    return Bias()


@pytest.mark.parametrize(
    "terms",
    [[vectors(seed=1), vectors(seed=2)], [bias_with_values()]],
    ids=["two sets of vectors", "a bias with values"],
)
def test_no_term_is_left_out(terms):
    q, k, v = (random(BATCH, HEADS, 8, DIM, seed=seed).detach() for seed in (1, 2, 3))
    part = positions.LayerPositions(None, terms)
    output, _ = softmax_attention(q, k, v, part, causal=True)
    plain, _ = softmax_attention(q, k, v, part, causal=True, need_weights=True)
    assert torch.allclose(output, plain, atol=1e-10)
    first = positions.LayerPositions(None, terms[:1])
    if len(terms) > 1:
        assert not torch.allclose(output, softmax_attention(q, k, v, first, causal=True)[0])


def test_terms_can_be_replaced():
    part = layer("alibi").positions
    part.terms[0] = vectors()
    assert part.biases == [] and part.vectors is part.terms[0]


def test_a_second_derivative_is_refused():
    q, k, v, terms, _ = given(8, 8, 4, True, "keys values")
    output = blocked_attention(q, k, v, terms, causal=True)
    with pytest.raises(RuntimeError, match="no second derivative; need_weights=True"):
        torch.autograd.grad(output.sum(), q, create_graph=True)


@pytest.mark.parametrize("way", ["blocks", "one query", "weights"])
@pytest.mark.parametrize("spec", ["t5", "shaw"])
@torch.no_grad()
def test_scores_are_float32_under_autocast(spec, way):
    torch.manual_seed(0)
    query_len = 1 if way == "one query" else 8
    q, k, v = (torch.randn(BATCH, HEADS, n, 8).bfloat16() for n in (query_len, 8, 8))
    part = layer(spec).positions
    options = {
        "causal": True,
        "kept": {} if way == "one query" else None,
        "need_weights": way == "weights",
    }
    expected = softmax_attention(q, k, v, part, **options)
    with torch.autocast("cpu", torch.bfloat16):
        output = softmax_attention(q, k, v, part, **options)
    assert torch.equal(output[0], expected[0])
    if way == "weights":
        assert output[1].dtype == torch.float32 and torch.equal(output[1], expected[1])
