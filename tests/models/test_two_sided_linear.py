"""Linear self-attention where a query sees every key, as encoders use it."""

import pytest
import torch
from build import LINEAR
from linear_reference import by_loops

from pe_fairseq import attention, positions
from pe_fairseq.errors import UserError
from pe_fairseq.models.linear_self_attention import LinearSelfAttention
from pe_fairseq.positions import PositionIds

HEADS, HEAD_DIM, LENGTH = 2, 4, 9
DIM = HEADS * HEAD_DIM
KINDS = ["performer", "performer(features=elu)", "performer(features=favor,m=6)"]
# embeddings act before attention
MAPPING = ["none", "rope", "permute", "permute(decay=false)"]


def layer(kind, position):
    """A two-sided layer in float64; None where the scheme leaves nothing to do."""
    linear = attention.parse(kind)
    torch.manual_seed(1)
    built = LinearSelfAttention(DIM, HEADS, causal=False, linear=linear)
    built.feature_map = linear.feature_map(HEAD_DIM, torch.Generator().manual_seed(1))
    size = positions.ModelSize(
        DIM, LENGTH, HEADS, causal=False, features=built.feature_map.size
    )
    (found,) = positions.build_layers(
        positions.parse(position), size, lambda name: torch.Generator()
    )
    if found is not None:
        built.set_positions(found, PositionIds())
    return built.double()


def inputs():
    x = torch.randn(LENGTH, 2, DIM, generator=torch.Generator().manual_seed(2)).double()
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[1, :3] = True
    return x, padding


@pytest.mark.parametrize("position", MAPPING)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_formula(kind, position):
    """φ(q_i) · φ(k_j), mapped by position, over every key; rope's sum has unturned features."""
    built = layer(kind, position)
    x, padding = inputs()
    with torch.no_grad():
        got, _ = built(x, key_padding_mask=padding)
        split = lambda y: y.view(LENGTH, 2, HEADS, HEAD_DIM).permute(1, 2, 0, 3)  # noqa: E731
        q, k, v = map(split, (built.q_proj(x), built.k_proj(x), built.v_proj(x)))
        q, (k, scale) = built.feature_map.query(q), built.feature_map.key(k)
        turned = q, k
        if built.positions is not None and built.positions.query_key_map is not None:
            ids = ((~padding).long().cumsum(1) - 1).clamp(min=0)
            query_key_map = built.positions.query_key_map
            turned = query_key_map(q, k, query_key_map.prepare(ids))

        def loops(query, key, value, normalize):
            rows = by_loops(
                *(y.tolist() for y in (query, key, value)),
                log_scale=None if scale is None else scale.tolist(),
                padding=padding.tolist(),
                causal=False,
                normalize=normalize,
            )
            return torch.tensor(rows, dtype=torch.float64)

        if position == "rope":
            ones = torch.ones_like(v[..., :1])
            want = loops(*turned, v, False) / loops(q, k, ones, False)
        else:
            want = loops(*turned, v, True)
        want = built.out_proj(want.permute(2, 0, 1, 3).reshape(LENGTH, 2, DIM))
    real = ~padding.T
    assert torch.allclose(got[real], want[real], atol=1e-6)


@pytest.mark.parametrize("position", [name for name in LINEAR if "2d" not in name])
def test_padding_changes_nothing(position):
    built = layer("performer", position)
    x, padding = inputs()
    with torch.no_grad():
        whole, _ = built(x, key_padding_mask=padding)
        alone, _ = built(x[3:, 1:])
    assert torch.allclose(whole[3:, 1:], alone, atol=1e-9)


def test_a_two_sided_permuteformer_has_no_decay():
    """One side of it would grow without end (Chen 2021, the released encoders have none)."""
    assert layer("performer", "permute").positions.log_decay is None
    with pytest.raises(UserError, match="a decay alone, which attention to both sides"):
        layer("performer", "permute(permutation=false)")
