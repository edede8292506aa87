"""TensorBoard files against the log and the checkpoint of the same run."""

import contextvars
import json
import re
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from build import SOFTMAX, build
from fairseq.logging import progress_bar
from fairseq.trainer import Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pe_fairseq.compat.tensorboard import position_parameters

LINE = re.compile(r" \| INFO \| (train_inner|train|valid) \| (\{.*\})$", re.MULTILINE)
TABLE = "decoder.layers.0.self_attn.positions.terms.0.weight"
FREQUENCIES = "decoder.embed_positions.frequencies"


def logged(output):
    """``{(tag, name): {step: number}}`` of a log in JSON."""
    curves = defaultdict(dict)
    for tag, line in LINE.findall(output):
        prefix = "" if tag == "train_inner" else f"{tag}_"
        stats = {name.removeprefix(prefix): value for name, value in json.loads(line).items()}
        step = int(stats.pop("num_updates"))
        for name in stats.keys() - {"epoch", "update"}:
            curves[tag, name][step] = float(stats[name])
    return curves


def drawn(folder):
    """What TensorBoard shows of each run: its accumulator, by the run's name."""
    runs = {}
    for run in folder.iterdir():
        runs[run.name] = EventAccumulator(str(run), {"scalars": 0, "histograms": 0})
        runs[run.name].Reload()
    return runs


def assert_scalars_are(curves, runs):
    shown = {
        (run, name): [(event.step, event.value) for event in events.Scalars(name)]
        for run, events in runs.items()
        for name in events.Tags()["scalars"]
        if not name.startswith("positions/")
    }
    assert shown.keys() == curves.keys()
    for key, curve in curves.items():
        assert [step for step, _ in shown[key]] == sorted(curve), key
        # the log has six digits
        assert dict(shown[key]) == pytest.approx(curve, rel=1e-5, abs=0), key


def assert_histogram_is(parameter, event):
    values, shown = parameter.double(), event.histogram_value
    assert shown.num == values.numel()
    assert (shown.min, shown.max) == (values.min().item(), values.max().item())
    assert shown.sum == pytest.approx(values.sum().item(), rel=1e-5)
    assert shown.sum_squares == pytest.approx(values.square().sum().item(), rel=1e-5)


def trained(folder, name):
    return torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"][name]


def test_a_run_that_lost_updates(train, tmp_path):
    options = (
        *("--tensorboard-logdir", tmp_path / "tb", "--log-format", "json", "--bf16"),
        *("--save-interval-updates", 4),
    )
    _, lost = train(tmp_path, *options, "--max-update", 6, position="t5")
    again = ("--restore-file", tmp_path / "checkpoint_1_4.pt", "--max-update", 8)
    _, output = train(tmp_path, *options, *again, position="t5")

    curves = logged(output)
    assert list(curves["train_inner", "loss"]) == [5, 6, 7, 8]
    for key, curve in logged(lost).items():
        curves[key].update((step, number) for step, number in curve.items() if step <= 4)
    runs = drawn(tmp_path / "tb")
    assert_scalars_are(curves, runs)

    inner, tag = runs["train_inner"], f"positions/{TABLE}"
    assert inner.Tags()["histograms"] == [tag]
    assert [event.step for event in inner.Histograms(tag)] == [4, 8]
    table = trained(tmp_path, TABLE).float()
    assert_histogram_is(table, inner.Histograms(tag)[-1])
    for what in ("norm", "mean", "min", "max"):
        events = inner.Scalars(f"{tag}/{what}")
        assert [event.step for event in events] == list(range(1, 9))
        assert events[-1].value == pytest.approx(getattr(table, what)().item(), rel=1e-5)
    assert len([name for name in inner.Tags()["scalars"] if name.startswith(tag)]) == 4


def test_updates_between_log_lines(train, tmp_path):
    folder, output = train(
        tmp_path,
        *("--tensorboard-logdir", tmp_path / "tb", "--log-format", "json"),
        *("--log-interval", 3, "--max-epoch", 2, "--max-update", 0, "--update-freq", 2),
        position="learnable-sinusoidal",
    )
    runs = drawn(tmp_path / "tb")
    curves = logged(output)
    assert len(curves["valid", "ppl"]) == len(curves["train", "ppl"]) == 2
    assert_scalars_are(curves, runs)

    inner, tag = runs["train_inner"], f"positions/{FREQUENCIES}"
    frequencies = trained(folder, FREQUENCIES)
    histograms = inner.Histograms(tag)
    assert [event.step for event in histograms] == list(curves["valid", "ppl"])
    assert_histogram_is(frequencies, histograms[-1])
    assert {f"{tag}/{i}" for i in range(16)} < set(inner.Tags()["scalars"])
    last = inner.Scalars(f"{tag}/15")
    assert [event.step for event in last] == list(curves["train_inner", "ppl"])

    about = inner.Tensors("about/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "bits, base 2" in about and "seed 7, positions: learnable-sinusoidal\n" in about


def test_a_stock_model(train, tmp_path):
    _, output = train(
        tmp_path,
        *("--tensorboard-logdir", tmp_path / "tb", "--log-format", "json"),
        *("--decoder-input-dim", 32, "--decoder-output-dim", 32, "--decoder-layers", 2),
        arch="transformer_lm",
        position=None,
    )
    runs = drawn(tmp_path / "tb")
    assert_scalars_are(logged(output), runs)
    for run in runs.values():
        names = run.Tags()
        assert not [name for name in names["scalars"] if name.startswith("positions/")]
        assert not names["histograms"]


def test_two_runs_in_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_bar, "_tensorboard_writers", {})

    def train_and_log(name):
        trainer = SimpleNamespace(
            get_num_updates=lambda: 0,
            get_model=build,
            cfg=SimpleNamespace(common=SimpleNamespace(seed=1)),
            lr_step_begin_epoch=lambda epoch: None,
            quantizer=None,
            task=SimpleNamespace(begin_epoch=lambda epoch, model: None),
            tpu=False,
        )
        Trainer.begin_epoch(trainer, 1)
        bar = progress_bar.progress_bar([], "none", tensorboard_logdir=str(tmp_path / name))
        bar.print({"loss": 2.5}, tag="valid", step=1)

    context = contextvars.copy_context()
    context.run(train_and_log, "first")
    context.run(train_and_log, "second")
    for name in ("first", "second"):
        (loss,) = drawn(tmp_path / name)["valid"].Scalars("loss")
        assert loss.value == 2.5


@pytest.mark.parametrize("scheme", SOFTMAX)
def test_every_scheme(scheme):
    model = build(decoder_position=scheme)
    without = {name for name, _ in build(decoder_position="none").named_parameters()}
    expected = [name for name, _ in model.named_parameters() if name not in without]
    assert list(position_parameters(model)) == expected
