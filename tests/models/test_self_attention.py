"""The attention module on its own: states with and without padding masks."""

import pytest
import torch

from pe_fairseq import positions
from pe_fairseq.models.self_attention import SelfAttention
from pe_fairseq.positions import PositionIds

PADDING = torch.tensor(
    [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
    ]
).bool()


def module():
    torch.manual_seed(0)
    return SelfAttention(8, 2, causal=True).eval()


@pytest.mark.parametrize("cut", [2, 4, 6, 7])
def test_a_mask_may_come_with_any_call(cut):
    """Each call brings a mask only where its own tokens have padding."""
    attention, x, state, parts = module(), torch.randn(8, 3, 8), {}, []
    full, _ = attention(x, key_padding_mask=PADDING)
    for part in (slice(0, cut), slice(cut, 8)):
        mask = PADDING[:, part] if PADDING[:, part].any() else None
        parts.append(attention(x[part], key_padding_mask=mask, incremental_state=state)[0])
    real = ~PADDING.T
    assert torch.allclose(torch.cat(parts)[real], full[real], atol=1e-6)


def test_a_mask_of_bytes_is_a_mask():
    attention, x = module(), torch.randn(8, 3, 8)
    as_bytes = attention(x, key_padding_mask=PADDING.byte())[0]
    assert torch.equal(as_bytes, attention(x, key_padding_mask=PADDING)[0])


def test_a_mask_of_scores_replaces_the_causal_rule():
    attention, x = module(), torch.randn(5, 3, 8)
    causal = torch.full((5, 5), float("-inf")).triu(1)
    assert torch.allclose(attention(x)[0], attention(x, attn_mask=causal)[0], atol=1e-6)
    two_sided = attention(x, attn_mask=torch.zeros(5, 5))[0]
    assert not torch.allclose(two_sided[0], attention(x)[0][0], atol=1e-3)


@pytest.mark.parametrize("option", ["static_kv", "before_softmax"])
def test_what_has_no_meaning_is_refused(option):
    with pytest.raises(ValueError, match="takes neither"):
        module()(torch.randn(5, 3, 8), **{option: True})


def test_extra_keys_are_refused():
    with pytest.raises(ValueError, match="not served"):
        SelfAttention(8, 2, causal=True, add_bias_kv=True)


def test_layers_of_one_state_keep_their_own_rotations():
    x, shared = torch.randn(4, 1, 8), {}
    size = positions.ModelSize(8, max_positions=16, heads=2)
    parts = [
        positions.build_layers(positions.parse(spec), size, lambda name: torch.Generator())[0]
        for spec in ("rope", "rope(base=100)")
    ]
    near, far = PositionIds(), PositionIds(stride=2)
    for part, ids in ((0, near), (1, near), (1, far), (0, far)):
        attention = module()
        attention.set_positions(parts[part], ids)
        alone = attention(x, incremental_state={})[0]
        assert torch.equal(attention(x, incremental_state=shared)[0], alone)
        attention._set_input_buffer(shared, {})
