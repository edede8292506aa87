"""Flex attention against the plain formula: uncompiled anywhere, compiled on a GPU."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from pe_fairseq import positions
from pe_fairseq.attention import flex
from pe_fairseq.attention.flex import attend_by_flex, compiled, flex_serves
from pe_fairseq.attention.plain import plain_attention
from pe_fairseq.attention.softmax import distance_terms
from pe_fairseq.positions import ModelSize, Relative
from pe_fairseq.positions.ids import count_tokens

BATCH, HEADS, DIM, KEYS = 2, 2, 16, 24
SPECS = ["alibi", "t5", "shaw(clip=4,values=false)", "shaw(clip=5,values=false,per_head=true)"]
SPECS += ["nezha(clip=6,values=false)", "shaw(clip=4,values=false)+alibi"]
PADDING = torch.zeros(BATCH, KEYS, dtype=torch.bool)
PADDING[1, :5] = True


def part(spec, causal):
    size = ModelSize(HEADS * DIM, max_positions=64, heads=HEADS, causal=causal)
    return positions.build_layers(
        positions.parse(spec), size, lambda name: torch.Generator().manual_seed(1)
    )[0]


def both(spec, causal, queries, padding, device, kernel):
    """Output by flex attention, output by the formula, and the inputs."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(BATCH, HEADS, length, DIM, generator=generator)
        .to(device)
        .requires_grad_(device == "cuda")
        for length in (queries, KEYS, KEYS)
    )
    layer = part(spec, causal).to(device).requires_grad_(device == "cuda")
    padding = PADDING.to(device) if padding else None
    masks = {"causal": causal, "key_padding_mask": padding}
    terms = distance_terms(layer, q, KEYS, 1, causal)
    ours = attend_by_flex(q, k, v, terms, kernel=kernel, **masks)
    relative = Relative.of(count_tokens(KEYS, padding, device), queries, 1)
    expected, _ = plain_attention(q, k, v, layer, relative, q, **masks)
    real = torch.ones_like(ours, dtype=torch.bool)
    if padding is not None:
        real = ~padding[:, None, -queries:, None].expand_as(ours)
    return ours[real], expected[real], [q, k, v, *layer.parameters()]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("queries", [KEYS, 7, 1])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_scores_by_distance(spec, causal, queries, padding):
    ours, expected, _ = both(spec, causal, queries, padding, "cpu", flex_attention)
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize("spec", SPECS)
def test_compiled_with_gradients(spec, causal):
    ours, expected, leaves = both(spec, causal, KEYS, True, "cuda", compiled())
    assert torch.allclose(ours, expected, atol=1e-3)
    direction = torch.randn_like(ours)
    got = torch.autograd.grad((ours * direction).sum(), leaves)
    want = torch.autograd.grad((expected * direction).sum(), leaves)
    for a, b in zip(got, want):
        assert torch.allclose(a, b, atol=1e-2)


def test_it_serves_a_gpu_alone():
    query = torch.randn(1, HEADS, KEYS, DIM)
    assert not flex_serves(query, part("alibi", True), dropout=0.0)
    on_gpu = torch.empty(1, HEADS, KEYS, DIM, device="meta")
    assert not flex_serves(on_gpu, part("alibi", True), dropout=0.0)


def test_a_gpu_that_cannot_compile_is_told(monkeypatch, caplog):
    def broken():
        def call(*args, **options):
            raise RuntimeError("\nno Triton\nmore lines")

        return call

    monkeypatch.setattr(flex, "compiled", broken)
    flex._compiles.cache_clear()
    assert not flex._compiles(torch.device("cpu"))
    assert "not compile on cpu, so blocks of queries are used: no Triton" in caplog.text
    flex._compiles.cache_clear()


@torch.inference_mode()
def test_a_kept_mask_serves_training():
    mask = flex._causal_mask(KEYS + 1, KEYS + 1, torch.device("cpu"))
    assert not mask.kv_num_blocks.is_inference()
