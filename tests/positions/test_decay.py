"""Decays that no distance may have."""

import pytest
import torch

from pe_fairseq.errors import UserError
from pe_fairseq.positions import LayerPositions, parse


@pytest.mark.parametrize("decay", [1.5, 0.0, -0.5, float("nan")])
def test_a_decay_outside_0_to_1_is_refused(decay):
    with pytest.raises(UserError, match="decays must be above 0 and at most 1, not 0.5, "):
        LayerPositions(None, [], torch.tensor([0.5, decay]).log())
    LayerPositions(None, [], torch.tensor([0.5, 1.0]).log())


def test_the_option_says_what_it_takes():
    with pytest.raises(UserError, match="option 'decay' of 'permute'.*true or false.*0.9"):
        parse("permute(decay=0.9)")
