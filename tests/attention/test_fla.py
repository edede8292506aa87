"""flash-linear-attention against the torch form: on a GPU, and a stand-in of it anywhere."""

import inspect
import logging
import re

import pytest
import torch
from build import build, tokens

from pe_fairseq.attention import fla
from pe_fairseq.attention.linear import State, chunked, recurrent
from pe_fairseq.errors import UserError
from pe_fairseq.positions.permute import Permutations

BATCH, HEADS = 2, 3
DECAYS = torch.tensor([0.3, 0.9, 1.0]).log()
LEFT_PADDED = torch.zeros(BATCH, 150, dtype=torch.bool)
LEFT_PADDED[1, :70] = True


def chunk_simple_gla(
    q,
    k,
    v,
    g=None,
    g_gamma=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    **kwargs,
):
    """What version 0.6.0 documents and does, token by token."""
    assert g is None and cu_seqlens is None and cu_seqlens_cpu is None and not kwargs
    assert g_gamma.shape == (q.size(2),) and not state_v_first
    assert {x.dtype for x in (q, k, v, g_gamma, initial_state)} == {torch.float32}
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    q = q * (k.size(-1) ** -0.5 if scale is None else scale)
    start = State(initial_state, torch.zeros_like(k[:, :, 0]))
    output, state = recurrent(q, k, v, start, log_decay=g_gamma, normalize=False)
    return output.transpose(1, 2), state.values if output_final_state else None


@pytest.fixture
def caches():
    """Nothing is known of the kernels, and nothing has been logged."""
    for kept in (fla._fault, fla._tell):
        kept.cache_clear()
    yield
    for kept in (fla._fault, fla._tell):
        kept.cache_clear()


@pytest.fixture
def stand_in(monkeypatch, caches):
    """A CPU that is taken for a GPU, where the kernels are ``chunk_simple_gla`` above."""
    monkeypatch.setattr(fla, "DEVICE", "cpu")
    monkeypatch.setattr(fla, "TRIAL_LENGTH", 20)
    monkeypatch.setattr(fla, "installed_version", lambda: "0.6.0")
    monkeypatch.setattr(fla, "_torch_may_use_tf32", lambda: True)

    def use(kernel):
        monkeypatch.setattr(fla, "_kernel", lambda: kernel)

    use(chunk_simple_gla)
    return use


def inputs(dtype, length, features, head_dim, carried):
    """Features, values, and the values and normaliser of a state, or None and None."""
    generator = torch.Generator().manual_seed(0)
    states = [(features, head_dim), (features,)] if carried else []
    made = [
        torch.rand(BATCH, HEADS, *size, generator=generator)
        for size in [(length, features), (length, features), (length, head_dim), *states]
    ]
    made[2] -= 0.5
    made = [
        x.to(fla.DEVICE, dtype if i < 3 else torch.float32).requires_grad_()
        for i, x in enumerate(made)
    ]
    return made if carried else [*made, None, None]


def results(leaves, options):
    """Output, state, and the gradients of all leaves."""
    *features, values, normaliser = leaves
    state = None if values is None else State(values, normaliser)
    output, after = chunked(*features, state, **options)
    assert after.log_scale is None and after.values.dtype == torch.float32
    assert output.dtype == features[2].dtype
    generator = torch.Generator().manual_seed(1)
    made = [output, after.values, after.normaliser]
    total = sum(
        (x * torch.randn(x.shape, generator=generator).to(x.device)).sum() for x in made
    )
    return [*made, *torch.autograd.grad(total, [x for x in leaves if x is not None])]


def compare(monkeypatch, leaves, options, tolerance):
    monkeypatch.setenv(fla.SWITCH, "1")
    masks = {"log_decay": None, "key_log_scale": None, "key_padding_mask": None}
    masks.update((name, value) for name, value in options.items() if name in masks)
    assert fla.refusal(leaves[0], leaves[2], **masks) is None
    ours = results(leaves, options)
    monkeypatch.setenv(fla.SWITCH, "0")
    for a, b in zip(ours, results(leaves, options), strict=True):
        assert (a - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as it is"])
@pytest.mark.parametrize("carried", [False, True], ids=["", "state"])
@pytest.mark.parametrize("masks", ["", "decay", "padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layout_scale_state_and_normaliser(
    stand_in, monkeypatch, dtype, masks, carried, normalize
):
    calls = []
    stand_in(lambda *args, **options: calls.append(1) or chunk_simple_gla(*args, **options))
    options = {"normalize": normalize}
    if masks == "decay":
        options["log_decay"] = DECAYS
    if masks == "padding":
        options["key_padding_mask"] = LEFT_PADDED
    leaves = inputs(dtype, 150, features=6, head_dim=5, carried=carried)
    compare(monkeypatch, leaves, options, 1e-5 if dtype is torch.float32 else 1e-3)
    assert len(calls) == 2  # the trial, and this


@pytest.mark.parametrize("head_dim", [1, 15, 16, 17])
def test_every_head_dim(stand_in, monkeypatch, head_dim):
    compare(monkeypatch, inputs(torch.float32, 9, 4, head_dim, carried=True), {}, 1e-5)


def test_features_that_come_unpermuted_are_left_to_torch(stand_in, monkeypatch):
    permutations = torch.tensor([[1, 2, 3, 0], [0, 2, 3, 1], [2, 3, 1, 0]])
    powers = Permutations(permutations).powers(1)
    outputs = []
    for switch in "10":
        monkeypatch.setenv(fla.SWITCH, switch)
        leaves = inputs(torch.float32, 9, 4, 5, carried=False)
        outputs.append(chunked(*leaves[:3], powers=powers)[0])
    assert torch.equal(*outputs)


def test_outputs_where_no_key_is_seen(stand_in):
    leaves = inputs(torch.float32, 150, 6, 5, carried=False)
    output, _ = chunked(*leaves[:3], key_padding_mask=LEFT_PADDED)
    assert (output[1, :, :70] == 0).all()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves[:3])


@pytest.mark.parametrize("attention", ["performer", "performer(normalize=false)"])
@pytest.mark.parametrize("position", ["sinusoidal", "rope", "permute", "permute(decay=false)"])
def test_in_a_model(stand_in, monkeypatch, attention, position):
    calls = []
    stand_in(lambda *args, **options: calls.append(1) or chunk_simple_gla(*args, **options))
    rows, both = tokens(), []
    for switch in "10":
        monkeypatch.setenv(fla.SWITCH, switch)
        model, state = build(decoder_attention=attention, decoder_position=position), {}
        with torch.no_grad():  # all but the last together, and a step
            model(rows[:, :-1], incremental_state=state)
            step = model(rows, incremental_state=state)[0]
        output = model(rows)[0]
        output.logsumexp(-1).sum().backward()
        both.append([output, step, *(p.grad for p in model.parameters())])
        if switch == "1":
            assert len(calls) >= 5  # a trial, and twice two layers
            calls.clear()
    assert not calls
    for a, b in zip(*both, strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-4)


REFUSALS = {
    "PE_FAIRSEQ_FLA=0": {"switch": "0"},
    "the tensors are on meta": {"device": "meta"},
    "not installed": {"version": None},
    "flash-linear-attention 0.5.2 is older than 0.6": {"version": "0.5.2"},
    "no float64": {"dtype": torch.float64},
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1": {"tf32": False},
    "scale of keys": {"key_log_scale": torch.zeros(BATCH, HEADS, 64)},
    "the decay skips padding": {
        "log_decay": DECAYS,
        "key_padding_mask": torch.zeros(BATCH, 64, dtype=torch.bool),
    },
    "a length that is a multiple of 64": {
        "length": 65,
        "log_decay": torch.tensor([0.24, 0.9, 1.0]).log(),
    },
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_why_not(stand_in, monkeypatch, reason):
    case = dict(REFUSALS[reason])
    monkeypatch.setenv(fla.SWITCH, case.pop("switch", "1"))
    version, tf32 = case.pop("version", "0.6.0"), case.pop("tf32", True)
    monkeypatch.setattr(fla, "installed_version", lambda: version)
    monkeypatch.setattr(fla, "_torch_may_use_tf32", lambda: tf32)
    query = torch.rand(
        BATCH,
        HEADS,
        case.pop("length", 64),
        4,
        dtype=case.pop("dtype", torch.float32),
        device=case.pop("device", "cpu"),
    )
    masks = {"log_decay": None, "key_log_scale": None, "key_padding_mask": None, **case}
    assert reason in fla.refusal(query, query, **masks)


@pytest.mark.parametrize(
    ("length", "decay", "dtype", "tf32"),
    [
        (64, 0.01, torch.float32, True),
        (65, 0.25, torch.float32, True),
        (64, 0.9, torch.bfloat16, False),
        (64, 0.9, torch.float16, False),
    ],
)
def test_what_is_served(stand_in, monkeypatch, length, decay, dtype, tf32):
    monkeypatch.setattr(fla, "_torch_may_use_tf32", lambda: tf32)
    query = torch.rand(BATCH, HEADS, length, 4, dtype=dtype)
    log_decay = torch.full((HEADS,), decay).log()
    assert fla.refusal(query, query, log_decay, None, None) is None


def test_tf32_is_as_torch_says():
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            assert fla._torch_may_use_tf32() == (precision != "highest")
    finally:
        torch.set_float32_matmul_precision(before)


def without_a_gradient(q, k, v, **options):
    return chunk_simple_gla(q, k.detach() + 0 * k, v, **options)


def with_another_state(q, k, v, **options):
    output, state = chunk_simple_gla(q, k, v, **options)
    return output, state + state.mean().item()


def with_nan(q, k, v, **options):
    output, state = chunk_simple_gla(q, k, v, **options)
    return output, state * float("nan")


def that_breaks(*args, **options):
    raise RuntimeError("no Triton\nmore")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (without_a_gradient, "wrong numbers on cpu"),
        (with_another_state, "wrong numbers on cpu"),
        (with_nan, "wrong numbers on cpu"),
        (that_breaks, r"do not run on cpu \(RuntimeError: no Triton\)"),
    ],
)
def test_kernels_that_fail_the_trial_are_not_used(stand_in, caplog, kernel, reason):
    leaves = inputs(torch.float32, 9, 4, 5, carried=True)
    stand_in(kernel)
    with caplog.at_level(logging.INFO, "pe_fairseq.attention.fla"):
        with torch.inference_mode():  # it is kept, and training may be next
            chunked(*leaves[:3])
        ours = results(leaves, {})
    (line,) = caplog.messages
    assert line.startswith("linear attention: torch, because its kernels ")
    assert re.search(reason, line)
    assert all(x.isfinite().all() for x in ours)


@torch.inference_mode()
def test_the_trial_has_gradients_where_the_call_has_none(stand_in):
    query = torch.rand(BATCH, HEADS, 9, 4)
    assert fla.refusal(query, query, None, None, None) is None


def test_the_way_is_logged_once(stand_in, monkeypatch, caplog):
    leaves = inputs(torch.float32, 9, 4, 5, carried=False)
    with caplog.at_level(logging.INFO, "pe_fairseq.attention.fla"):
        for switch in "1100":
            monkeypatch.setenv(fla.SWITCH, switch)
            chunked(*leaves[:3])
    assert caplog.messages == [
        "linear attention: flash-linear-attention 0.6.0",
        "linear attention: torch, because PE_FAIRSEQ_FLA=0",
    ]


def test_a_bad_switch(stand_in, monkeypatch):
    monkeypatch.setenv(fla.SWITCH, "off")
    leaves = inputs(torch.float32, 9, 4, 5, carried=False)
    with pytest.raises(UserError, match="PE_FAIRSEQ_FLA='off' is neither 0"):
        chunked(*leaves[:3])


def test_the_stand_in_has_their_signature():
    if fla.installed_version() is None:
        pytest.skip("flash-linear-attention is not installed")
    try:
        theirs = inspect.signature(fla._kernel())
    except Exception as error:
        pytest.skip(f"flash-linear-attention does not import here: {error}")
    ours = inspect.signature(chunk_simple_gla)
    assert {name: p.default for name, p in theirs.parameters.items()} == {
        name: p.default for name, p in ours.parameters.items()
    }


@pytest.mark.cuda
@pytest.mark.skipif(
    fla.installed_version() is None,
    reason="needs flash-linear-attention: pip install 'pe-fairseq[gpu]'",
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as it is"])
@pytest.mark.parametrize("carried", [False, True], ids=["", "state"])
@pytest.mark.parametrize("decay", [None, DECAYS], ids=["", "decay"])
@pytest.mark.parametrize("features", [64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernels(monkeypatch, caches, dtype, features, decay, carried, normalize):
    monkeypatch.setattr(fla, "_torch_may_use_tf32", lambda: True)
    options = {"normalize": normalize}
    if decay is not None:
        options["log_decay"] = decay.to(fla.DEVICE)
    leaves = inputs(dtype, 1000, features, head_dim=64, carried=carried)
    compare(monkeypatch, leaves, options, tolerance=0.01)
