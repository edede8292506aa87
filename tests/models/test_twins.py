"""Ours against the same schemes in Hugging Face's transformers."""

import pytest
import torch

pytest.importorskip("transformers.utils")

import transformers.utils

# torchaudio, which fairseq installs, does not import beside a CPU build of torch
transformers.utils.is_torchaudio_available = lambda: False

from pe_fairseq import positions  # noqa: E402
from pe_fairseq.positions import ModelSize, Relative  # noqa: E402
from pe_fairseq.positions.ids import count_tokens  # noqa: E402

HEADS, HEAD_DIM, LENGTH = 4, 16, 40
SIZE = ModelSize(HEADS * HEAD_DIM, max_positions=LENGTH, heads=HEADS)


def layer(spec, size=SIZE):
    return positions.build_layers(positions.parse(spec), size, lambda name: torch.Generator())[
        0
    ]


def relative():
    return Relative.of(count_tokens(LENGTH, None), LENGTH, stride=1)


def test_rope():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    config = LlamaConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS)
    q, k = torch.randn(2, 2, HEADS, LENGTH, HEAD_DIM)
    ids = torch.arange(LENGTH)[None].expand(2, -1)
    cos, sin = LlamaRotaryEmbedding(config)(q, ids)
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    rotation = layer("rope").query_key_map
    for ours, theirs in zip(rotation(q, k, rotation.prepare(ids)), expected):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_rope_interleaved():
    from transformers.models.gptj.modeling_gptj import (
        apply_rotary_pos_emb,
        create_sinusoidal_positions,
    )

    x = torch.randn(2, HEADS, LENGTH, HEAD_DIM)
    sin, cos = create_sinusoidal_positions(LENGTH, HEAD_DIM)[None].chunk(2, dim=-1)
    expected = apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)
    rotation = layer("rope(pairing=interleaved)").query_key_map
    ours = rotation(x, x, rotation.prepare(torch.arange(LENGTH)[None]))
    assert all(torch.allclose(one, expected, atol=1e-5) for one in ours)


@pytest.mark.parametrize("heads", [4, 6, 12])
def test_alibi_after_softmax(heads):
    """BLOOM writes the bias by key index, which is the same after softmax."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    mask = torch.ones(1, LENGTH)
    theirs = build_alibi_tensor(mask, heads, torch.float32).view(1, heads, 1, LENGTH)
    size = ModelSize(heads * HEAD_DIM, max_positions=LENGTH, heads=heads)
    query = torch.zeros(1, heads, LENGTH, HEAD_DIM)
    ours = layer("alibi", size).score(query, relative())
    later = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
    scores = torch.randn(1, heads, LENGTH, LENGTH) + later
    a, b = torch.softmax(scores + ours, dim=-1), torch.softmax(scores + theirs, dim=-1)
    assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_t5(causal):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=HEADS * HEAD_DIM, d_kv=HEAD_DIM, num_heads=HEADS, is_decoder=causal
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    size = ModelSize(HEADS * HEAD_DIM, max_positions=LENGTH, heads=HEADS, causal=causal)
    term = layer("t5", size).terms[0]
    term.weight.data.copy_(theirs.relative_attention_bias.weight)
    length = 300  # past the last bucket
    pairs = Relative.of(count_tokens(length, None), length, stride=1)
    ours = term.score(torch.zeros(1, HEADS, length, HEAD_DIM), pairs)
    expected = theirs.compute_bias(length, length)
    seen = (
        torch.ones(length, length).tril().bool()
        if causal
        else torch.ones(length, length).bool()
    )
    assert torch.equal(ours[..., seen], expected[..., seen])


def test_relative_key():
    """Shaw's vectors on keys, as BERT has them under position_embedding_type=relative_key."""
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
        Wav2Vec2BertSelfAttention,
    )

    config = Wav2Vec2BertConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=6,
        right_max_position_embeddings=6,
    )
    theirs = Wav2Vec2BertSelfAttention(config).eval()
    x = torch.randn(2, LENGTH, HEADS * HEAD_DIM)
    _, expected = theirs(x, output_attentions=True)

    from pe_fairseq.models.self_attention import SelfAttention

    ours = SelfAttention(HEADS * HEAD_DIM, HEADS, causal=False).eval()
    for name, their_name in (("q_proj", "linear_q"), ("k_proj", "linear_k")):
        getattr(ours, name).load_state_dict(getattr(theirs, their_name).state_dict())
    part = layer("shaw(clip=6,values=false)")
    # their distance is key − query, ours query − key
    part.terms[0].key_table.data.copy_(theirs.distance_embedding.weight.flip(0))
    ours.set_positions(part, positions.PositionIds())
    _, weights = ours(x.transpose(0, 1), need_head_weights=True)
    assert torch.allclose(weights.transpose(0, 1), expected, atol=1e-5)
