"""Training by segments of a text: the loss and gradients of the whole, in less memory."""

from argparse import Namespace

import pytest
import torch
from build import PAD, Task, build, pad_left, pad_right, tokens
from fairseq.criterions.cross_entropy import CrossEntropyCriterion

from pe_fairseq.errors import UserError
from pe_fairseq.tasks import segments
from pe_fairseq.tasks.language_modeling import PeLanguageModelingTask


class Optimizer:
    """What a fairseq optimizer does with a loss, that half precision scales."""

    def __init__(self, scale):
        self.scale = scale

    def backward(self, loss):
        (self.scale * loss).backward()


def criterion(task, sentence_avg=False):
    return CrossEntropyCriterion(task, sentence_avg)


def batch(rows):
    target = rows.roll(-1, dims=1)
    target[:, -1] = 2
    target = target.masked_fill(rows.eq(PAD), PAD)
    lengths = rows.ne(PAD).sum(1)
    return {
        "net_input": {"src_tokens": rows, "src_lengths": lengths},
        "target": target,
        "ntokens": int(target.ne(PAD).sum()),
        "nsentences": len(rows),
    }


def gradients(model):
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("sentence_avg", [False, True], ids=["by token", "by sentence"])
@pytest.mark.parametrize("size", [1, 7, 24, 100])
@pytest.mark.parametrize(
    "attention, position",
    [
        ("performer", "sinusoidal+permute"),
        ("performer(features=favor,m=8)", "rope"),
        ("performer(normalize=false)", "permute(permutation=false)"),
    ],
)
def test_loss_and_gradients_of_the_whole(attention, position, size, sentence_avg, padding):
    task = Task()
    options = {"decoder_attention": attention, "decoder_position": position}
    model = build(task=task, **options).double().train()
    rows = tokens(batch=2, length=24)
    if padding != "none":
        pad = pad_left if padding == "left" else pad_right
        rows = torch.cat([rows, pad(tokens(batch=1, length=13, seed=1), 11)])
    sample, measure = batch(rows), criterion(task, sentence_avg)
    loss, sample_size, logged = measure(model, sample)
    (8 * loss).backward()
    want = gradients(model)
    got_loss, got_size, got_logged = segments.train_step(
        sample, model, measure, Optimizer(8), size
    )
    assert torch.allclose(got_loss, loss)
    assert got_size == sample_size
    assert got_logged.keys() == logged.keys()
    for key, value in logged.items():
        assert float(got_logged[key]) == pytest.approx(float(value)), key
    got = gradients(model)
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        assert torch.allclose(got[name], gradient, atol=1e-10), name


def test_both_passes_over_a_segment_see_one_dropout():
    """So the states that the second pass starts from are those that it would have made."""
    task = Task()
    model = build(
        task=task, decoder_attention="performer", dropout=0.5, decoder_position="none"
    )
    model.train()
    seen = []
    model.decoder.layers[0].register_forward_hook(lambda *found: seen.append(found[2][0]))
    torch.manual_seed(3)
    segments.train_step(
        batch(tokens(batch=2, length=24)), model, criterion(task), Optimizer(1), 8
    )
    first, second = seen[:2], seen[:1:-1]  # 1 2 | 3 2 1
    assert len(seen) == 5
    for a, b in zip(first, second):
        assert torch.equal(a, b)
    assert not torch.equal(second[0], second[1])


def test_ignored_gradients_are_zero():
    task = Task()
    model = build(task=task, decoder_attention="performer").train()
    segments.train_step(
        batch(tokens()), model, criterion(task), Optimizer(1), 8, ignore_grad=True
    )
    assert all((gradient == 0).all() for gradient in gradients(model).values())


def test_what_is_kept_does_not_grow_with_the_text():
    """The most bytes that autograd holds at a time: whole texts take 8 times as much."""
    task = Task()
    model = build(task=task, decoder_attention="performer", decoder_position="permute").train()
    most = {}
    for length in (512, 4096):
        held = {"now": 0, "most": 0}

        class Kept:
            def __init__(self, tensor, held=held):
                self.tensor, self.held = tensor, held
                held["now"] += tensor.nbytes
                held["most"] = max(held.values())

            def __del__(self):
                self.held["now"] -= self.tensor.nbytes

        sample = batch(tokens(batch=1, length=length))
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            segments.train_step(sample, model, criterion(task), Optimizer(1), 256)
        most[length] = held["most"]
    assert most[4096] <= 1.01 * most[512]


def config(**changes):
    base = {
        "decoder_attention": "performer",
        "checkpoint_activations": False,
        "offload_activations": False,
        "decoder_layerdrop": 0.0,
    }
    return Namespace(**{**base, **changes})


@pytest.mark.parametrize(
    "changes, size, message",
    [
        ({}, 0, "--train-segment 0 must be 1 token or more"),
        ({"decoder_attention": "softmax"}, 8, "needs linear attention"),
        ({"checkpoint_activations": True}, 8, "leave --checkpoint-activations"),
        ({"decoder_layerdrop": 0.1}, 8, "--decoder-layerdrop 0.1 would leave gaps"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(changes, size, message):
    with pytest.raises(UserError, match=message):
        segments.check(config(**changes), size)
    segments.check(config(), 8)


def test_the_task_trains_by_segments_where_it_is_asked_to():
    """``--train-segment`` of ``pe_language_modeling``; without it, stock's step."""
    dictionary = Task().source_dictionary
    model = build(decoder_attention="performer", task=Task()).train()
    sample = batch(tokens(batch=2, length=24))
    calls = []
    model.decoder.register_forward_hook(lambda *_: calls.append(1))
    found = []
    for size in (None, 8):
        task = PeLanguageModelingTask(Namespace(train_segment=size), dictionary, dictionary)
        measure = criterion(task)
        loss, *_ = task.train_step(sample, model, measure, Optimizer(1), update_num=3)
        found.append((loss, gradients(model), len(calls)))
        calls.clear()
    (loss, want, once), (other, got, by_segments) = found
    assert (once, by_segments) == (1, 5)
    assert torch.allclose(loss, other)
    for name, gradient in want.items():
        assert torch.allclose(got[name], gradient, atol=1e-4), name
    with pytest.raises(UserError, match="needs linear attention"):
        task.build_model(config(decoder_attention="softmax"))
