"""Every token counts once, with as much context as the window and its document have."""

import pytest

from pe_fairseq.errors import UserError
from pe_fairseq.evaluation.windows import plan

DOCUMENTS = [70, 1, 33, 16, 128]


@pytest.mark.parametrize(
    ("length", "stride"),
    [(1, 1), (8, 1), (8, 3), (8, 8), (33, 16), (64, 32), (64, 3), (64, 64), (500, 250)],
)
def test_targets_and_context(length, stride):
    windows = plan(DOCUMENTS, length, stride)
    begins = {}
    begin = 0
    for tokens in DOCUMENTS:
        begins.update({target: begin for target in range(begin, begin + tokens)})
        begin += tokens

    counted = [target for window in windows for target in range(window.first, window.stop)]
    assert counted == list(range(sum(DOCUMENTS)))
    for window in windows:
        assert window.stop - window.start <= length
        assert begins[window.start] == begins[window.stop - 1], "it leaves its document"
        for target in range(window.first, window.stop):
            seen = target - window.start
            assert seen >= min(length - stride, target - begins[target])


@pytest.mark.parametrize(("length", "stride"), [(8, 4), (8, 8), (8, 1), (16, 12)])
def test_disjoint_windows_are_full_and_share_no_target(length, stride):
    chosen = [window for window in plan(DOCUMENTS, length, stride) if window.disjoint]
    assert all(window.stop - window.start == length for window in chosen)
    targets = [target for window in chosen for target in range(window.start, window.stop)]
    assert len(targets) == len(set(targets))
    assert len(chosen) >= sum(tokens // (2 * length) for tokens in DOCUMENTS)


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_out_of_range_is_refused(stride):
    with pytest.raises(UserError, match=f"stride {stride}"):
        plan(DOCUMENTS, 8, stride)
