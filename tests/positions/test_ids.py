import pytest
import torch

from pe_fairseq.errors import UserError
from pe_fairseq.positions import Beyond, PositionIds


def by_counting(row, stride, offset):
    """Ids of one row's real tokens, counted one by one; None at padding."""
    ids, count = [], 0
    for padded in row:
        ids.append(None if padded else offset + stride * count)
        count += not padded
    return ids


@pytest.mark.parametrize(("stride", "offset"), [(1, 0), (4, 0), (1, 7), (3, 2)])
@pytest.mark.parametrize(
    "row", ["......", "##....", "....##", "#.##.#", "######"], ids=lambda row: row
)
def test_ids_count_real_tokens(row, stride, offset):
    mask = torch.tensor([[mark == "#" for mark in row]])
    ids = PositionIds(stride, offset)(len(row), mask)[0].tolist()
    expected = by_counting(mask[0].tolist(), stride, offset)
    assert [i for i, e in zip(ids, expected) if e is not None] == [
        e for e in expected if e is not None
    ]
    assert min(ids) >= offset


def test_without_padding_one_row_serves_all():
    assert PositionIds(2, 1)(4, None).tolist() == [[1, 3, 5, 7]]
    assert PositionIds(2, 1).last(4) == 7


@pytest.mark.parametrize(("stride", "offset"), [(0, 0), (-1, 0), (1, -1)])
def test_out_of_range(stride, offset):
    with pytest.raises(UserError, match="must be"):
        PositionIds(stride, offset)


def test_positions_that_float32_cannot_tell_apart():
    assert PositionIds(offset=2**24 - 10).last(10) == 2**24 - 1
    for ids in (PositionIds(offset=2**24 - 9), PositionIds(stride=10**18)):
        with pytest.raises(UserError, match="positions must stay below 16777216"):
            ids.last(10)


def test_error_refuses_the_first_id_past_the_end():
    ids = torch.arange(9)[None]
    rule = Beyond(8)
    assert rule(ids[:, :8], largest=7) is not None
    with pytest.raises(UserError, match="position 8 is beyond the learned table, which has 8"):
        rule(ids, largest=8)


def test_error_looks_at_the_ids_where_padding_fills_the_row():
    rule = Beyond(8)
    assert rule(torch.arange(8)[None], largest=20).tolist() == [list(range(8))]


def test_clamp_repeats_the_last_position():
    assert Beyond(4, "clamp")(torch.arange(6)[None], 5).tolist() == [[0, 1, 2, 3, 3, 3]]


def test_interpolate_keeps_both_ends_and_even_steps():
    ids = Beyond(4, "interpolate", 7)(torch.arange(7)[None], 6)
    assert torch.allclose(ids, torch.arange(7).double()[None] * 0.5, atol=1e-12, rtol=0)


def test_interpolate_does_not_depend_on_the_length_at_hand():
    rule = Beyond(4, "interpolate", 9)
    short, long = rule(torch.arange(5)[None], 4), rule(torch.arange(9)[None], 8)
    assert torch.equal(short, long[:, :5])
    with pytest.raises(UserError, match="beyond the position length 9"):
        rule(torch.arange(10)[None], 9)


@pytest.mark.parametrize(
    ("rule", "length"),
    [("stretch", None), ("interpolate", None), ("interpolate", 4), ("clamp", 9), ("error", 9)],
)
def test_rules_that_cannot_be_meant(rule, length):
    with pytest.raises(UserError):
        Beyond(4, rule, length)
