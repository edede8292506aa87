"""Linear attention: three forms of one function, against plain loops."""

import pytest
import torch
from linear_reference import by_loops

from pe_fairseq.attention.linear import State, chunked, recurrent, two_sided
from pe_fairseq.attention.linear_chunks import CHUNK

BATCH, HEADS, FEATURES, HEAD_DIM = 2, 3, 5, 4
DECAYS = torch.tensor([0.1, 0.9, 1.0], dtype=torch.float64)
FORMS = [chunked, recurrent]
forms = pytest.mark.parametrize("form", FORMS, ids=["chunked", "recurrent"])
PADDINGS = {"none": [], "left": [(1, 0, 7)], "right": [(0, -5, None)], "gap": [(1, 3, 6)]}


def inputs(length, seed=0, keys=None):
    """Features of queries and keys, and values, in float64 with gradients."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(length, FEATURES), (keys or length, FEATURES), (keys or length, HEAD_DIM)]
    made = [
        torch.randn(BATCH, HEADS, *size, generator=generator, dtype=torch.float64)
        for size in sizes
    ]
    return [x.abs().requires_grad_() for x in made[:2]] + [made[2].requires_grad_()]


def padding_mask(name, length):
    if name == "none":
        return None
    mask = torch.zeros(BATCH, length, dtype=torch.bool)
    for row, start, stop in PADDINGS[name]:
        mask[row, start:stop] = True
    return mask


def expected(query, key, value, *, decay=None, log_scale=None, padding=None, **kwargs):
    """What the loops give, as a tensor that has gradients."""
    lists = (
        [[[list(row) for row in head] for head in b] for b in x] for x in (query, key, value)
    )
    rows = by_loops(
        *lists,
        decay=None if decay is None else decay.tolist(),
        log_scale=None if log_scale is None else log_scale.tolist(),
        padding=None if padding is None else padding.tolist(),
        **kwargs,
    )
    flat = [
        torch.as_tensor(x, dtype=torch.float64) for b in rows for h in b for r in h for x in r
    ]
    return torch.stack(flat).view(*query.shape[:3], value.size(-1))


def compare(got, want, padding, leaves):
    """Equal at real tokens, and so are the gradients of all leaves."""
    real = torch.ones(got.shape[0], got.shape[2], dtype=torch.bool)
    if padding is not None and padding.size(1) == got.size(2):
        real = ~padding
    real = real[:, None, :, None]
    assert torch.allclose(got * real, want * real, atol=1e-9)
    direction = (
        torch.randn(got.shape, generator=torch.Generator().manual_seed(5)).double() * real
    )
    ours = torch.autograd.grad((got * direction).sum(), leaves)
    theirs = torch.autograd.grad((want * direction).sum(), leaves)
    for a, b in zip(ours, theirs):
        assert torch.allclose(a, b, atol=1e-8)


@forms
@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as it is"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("decay", [None, DECAYS], ids=["no decay", "decay"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_causal_output_and_gradients(form, decay, padding, scaled, normalize):
    if scaled and not normalize:
        pytest.skip("scaled keys give normalised outputs only")
    length = 18
    query, key, value = inputs(length)
    mask, log_scale = padding_mask(padding, length), None
    if scaled:
        log_scale = 3 * torch.randn(BATCH, HEADS, length, dtype=torch.float64)
    got, _ = form(
        query,
        key,
        value,
        log_decay=None if decay is None else decay.log(),
        key_log_scale=log_scale,
        key_padding_mask=mask,
        normalize=normalize,
    )
    want = expected(
        query,
        key,
        value,
        decay=decay,
        log_scale=log_scale,
        padding=mask,
        causal=True,
        normalize=normalize,
    )
    compare(got, want, mask, (query, key, value))


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_chunks_equal_token_by_token(length):
    leaves = inputs(length)
    log_decay = DECAYS.log()
    (a, state_a), (b, state_b) = (form(*leaves, log_decay=log_decay) for form in FORMS)
    compare(a, b, None, leaves)
    assert torch.allclose(state_a.values, state_b.values)
    assert torch.allclose(state_a.normaliser, state_b.normaliser)


@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_each_form_goes_on_where_another_stopped(padding, scaled):
    length = CHUNK + 9
    query, key, value = leaves = inputs(length)
    mask = padding_mask(padding, length)
    log_scale = None
    if scaled:
        log_scale = 3 * torch.randn(BATCH, HEADS, length, dtype=torch.float64)
    whole, _ = chunked(
        *leaves, log_decay=DECAYS.log(), key_log_scale=log_scale, key_padding_mask=mask
    )
    parts, state = [], None
    for form, part in zip(
        [chunked, recurrent, chunked, recurrent],
        [slice(0, 5), slice(5, 8), slice(8, CHUNK + 3), slice(CHUNK + 3, length)],
    ):
        output, state = form(
            *(x[:, :, part] for x in leaves),
            state,
            log_decay=DECAYS.log(),
            key_log_scale=None if log_scale is None else log_scale[..., part],
            key_padding_mask=None if mask is None else mask[:, part],
        )
        parts.append(output)
    compare(torch.cat(parts, dim=2), whole, mask, leaves)


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as it is"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_two_sided_output_and_gradients(padding, scaled, normalize):
    if scaled and not normalize:
        pytest.skip("scaled keys give normalised outputs only")
    query, key, value = leaves = inputs(6, keys=18)
    mask, log_scale = padding_mask(padding, 18), None
    if scaled:
        log_scale = 3 * torch.randn(BATCH, HEADS, 18, dtype=torch.float64)
    got = two_sided(
        *leaves, key_log_scale=log_scale, key_padding_mask=mask, normalize=normalize
    )
    want = expected(
        *leaves, log_scale=log_scale, padding=mask, causal=False, normalize=normalize
    )
    compare(got, want, mask, leaves)


def test_gradients_of_a_state_that_is_carried_on():
    state = State(
        torch.rand(BATCH, HEADS, FEATURES, HEAD_DIM, dtype=torch.float64).requires_grad_(),
        torch.rand(BATCH, HEADS, FEATURES, dtype=torch.float64).requires_grad_(),
    )
    leaves = [*inputs(CHUNK + 3), *state[:2]]
    gradients = []
    for form in FORMS:
        output, after = form(*leaves[:3], State(*leaves[3:]), log_decay=DECAYS.log())
        total = output.sin().sum() + after.values.sin().sum() + after.normaliser.cos().sum()
        gradients.append(torch.autograd.grad(total, leaves))
    for a, b in zip(*gradients):
        assert torch.allclose(a, b, atol=1e-9)


@forms
@pytest.mark.parametrize("spread", [300.0, 3000.0])
def test_scales_that_no_exponential_could_hold(form, spread):
    """The largest key wins, whether it comes first or last, and what came before it counts."""
    length = 6
    query, key, value = (x.float() for x in inputs(length))
    for order in (1, -1):
        scale = order * torch.linspace(-spread, spread, length).expand(BATCH, HEADS, length)
        output, _ = form(query, key, value, key_log_scale=scale)
        winner = value if order == 1 else value[:, :, :1].expand_as(value)
        assert torch.allclose(output, winner, atol=1e-4)


def test_a_later_scale_leaves_earlier_outputs_bit_by_bit():
    query, key, value = inputs(CHUNK)
    scale = torch.zeros(BATCH, HEADS, CHUNK, dtype=torch.float64)
    before, _ = chunked(query, key, value, key_log_scale=scale)
    scale[..., 40] = 500.0
    after, _ = chunked(query, key, value, key_log_scale=scale)
    assert torch.equal(before[:, :, :40], after[:, :, :40])


@forms
def test_nan_is_not_hidden(form):
    query, key, value = (x.detach().clone() for x in inputs(9))
    key[0, 0, 4] = float("nan")
    output, _ = form(query, key, value, log_decay=DECAYS.log())
    assert output[0, 0, 4:].isnan().all()
    assert output[0, 1:].isfinite().all() and output[1].isfinite().all()


def test_padding_that_sees_no_key_gives_zero_and_no_gradient():
    leaves = inputs(9)
    mask = padding_mask("left", 9)
    output, _ = chunked(*leaves, log_decay=DECAYS.log(), key_padding_mask=mask)
    assert (output[1, :, :7] == 0).all()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)
    assert (leaves[1].grad[1, :, :7] == 0).all() and (leaves[2].grad[1, :, :7] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_text_stays_finite(dtype):
    """65,536 tokens: outputs and gradients, for every decay."""
    length = 65_536
    generator = torch.Generator().manual_seed(0)
    leaves = [
        torch.rand(1, HEADS, length, 8, generator=generator).to(dtype).requires_grad_()
        for _ in range(3)
    ]
    output, state = chunked(*leaves, log_decay=DECAYS.log())
    assert output.dtype == dtype and state.values.dtype == torch.float32
    # means of values drawn from [0, 1]
    assert output.isfinite().all() and 0 <= output.min() and output.max() <= 1.01
    assert (output[0, 2, -1].float() - 0.5).abs().max() < 0.05
    output.float().square().sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_no_second_derivative():
    leaves = inputs(5)
    output, _ = chunked(*leaves)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(output.sum(), leaves, create_graph=True)
