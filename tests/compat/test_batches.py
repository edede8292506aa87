"""No batch is left out, whatever its size."""

import numpy
import pytest
from fairseq.data import data_utils

from pe_fairseq.errors import UserError


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("samples", [1, 7, 8, 20, 164])
def test_the_last_batch_stays(samples, vector):
    sizes = numpy.full(samples, 10)
    batches = data_utils.batch_by_size(
        numpy.arange(samples),
        num_tokens_fn=lambda index: 10,
        num_tokens_vec=sizes if vector else None,
        max_tokens=90,
        required_batch_size_multiple=8,
    )
    assert numpy.concatenate(batches).tolist() == list(range(samples))
    assert all(len(batch) <= 9 for batch in batches)


@pytest.mark.parametrize("sizes", [None, numpy.full(3, 10), numpy.array([1, 10, 1])])
def test_a_sample_longer_than_a_batch_is_one_line(sizes):
    with pytest.raises(UserError, match="raise --max-tokens"):
        data_utils.batch_by_size(
            numpy.arange(3), lambda index: 10, num_tokens_vec=sizes, max_tokens=9
        )
