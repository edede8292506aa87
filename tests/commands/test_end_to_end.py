"""fairseq's own commands on real text, as a user types them."""

import os
import re
import signal
import subprocess
import time

import pytest
import torch
from conftest import SCRIPTS


def losses(log):
    """The training loss of every update, as printed."""
    return [float(x) for x in re.findall(r"train_inner \|.*? loss=([\d.]+)", log)]


def perplexity(out):
    return float(re.search(r"Perplexity: ([\d.]+)", out)[1])


def test_a_tiny_run_from_text_to_text_is_quick(text, train, fairseq, tmp_path):
    """Preprocess, train, evaluate and generate; the whole takes well under 90 s."""
    start = time.monotonic()
    data = tmp_path / "bin"
    splits = [(f"--{split}pref", text / split) for split in ("train", "valid", "test")]
    fairseq(
        "preprocess",
        "--only-source",
        *(word for pair in splits for word in pair),
        *("--destdir", data),
        user_dir=None,
    )
    fairseq(
        "train",
        data,
        *("--task", "language_modeling", "--arch", "pe_lm_tiny", "--tokens-per-sample", 64),
        *("--max-tokens", 512, "--optimizer", "adam", "--lr", 0.003, "--max-update", 20),
        *("--save-dir", tmp_path / "model", "--tensorboard-logdir", tmp_path / "board"),
    )
    checkpoint = tmp_path / "model" / "checkpoint_best.pt"
    options = ("--path", checkpoint, "--max-tokens", 2000)
    whole = fairseq("eval-lm", data, *options, "--tokens-per-sample", 64).stdout
    window = fairseq(
        "eval-lm", data, *options, "--tokens-per-sample", 64, "--context-window", 32
    ).stdout
    words = len((text / "test").read_text().split()) + 60
    for out in (whole, window):
        assert f"Evaluated {words:,} tokens" in out
        assert 50 < perplexity(out) < 5000
    out = fairseq(
        "interactive",
        data,
        *("--task", "language_modeling", "--path", checkpoint, "--beam", 2, "--max-len-b", 5),
        input="the value of\n",
    ).stdout
    assert re.search(r"^H-0\t-[\d.]+\tthe value of", out, re.M)
    assert list((tmp_path / "board").rglob("events.*"))
    assert time.monotonic() - start < 90


def check_same_end(one, other):
    a, b = (torch.load(folder / "checkpoint_last.pt") for folder in (one, other))
    for name, value in a["model"].items():
        assert torch.allclose(value, b["model"][name], atol=1e-6), name
    assert a["extra_state"]["val_loss"] == pytest.approx(b["extra_state"]["val_loss"], abs=1e-4)


def test_stopped_and_resumed_ends_at_the_same_loss(train, tmp_path):
    steady = ("--dropout", 0.1, "--save-interval-updates", 3, "--max-update")
    train(tmp_path / "a", *steady, 6, position="learned")
    train(tmp_path / "b", *steady, 3, position="learned")
    _, log = train(tmp_path / "b", *steady, 6, position="learned")
    assert "Loaded checkpoint" in log and "@ 3 updates" in log
    check_same_end(tmp_path / "a", tmp_path / "b")


def test_resumed_in_the_second_epoch_it_sees_the_same_batches(train, tmp_path):
    steady = ("--max-tokens", 8192, "--save-interval-updates", 5, "--max-update")
    _, log = train(tmp_path / "a", *steady, 8)
    assert "begin training epoch 2" in log
    train(tmp_path / "b", *steady, 5)
    _, log = train(tmp_path / "b", *steady, 8)
    assert "@ 5 updates" in log and "begin training epoch 1" not in log
    check_same_end(tmp_path / "a", tmp_path / "b")


def test_a_finished_run_stays_as_it_is(train, tmp_path):
    train(tmp_path, "--max-update", 2)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    _, log = train(tmp_path, "--max-update", 2)
    assert "2 of 2 updates are done: nothing to train" in log
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


def test_help_shows_the_model_s_options(fairseq):
    out = fairseq("train", "--task", "language_modeling", "--arch", "pe_lm", "--help").stdout
    assert "--decoder-position SPEC" in out and "--tokens-per-sample" in out
    assert "sinusoidal(layout=interleaved)" in out


def test_killed_and_resumed_ends_at_the_same_loss(train, data, user_dir, tmp_path):
    """SIGKILL after the first checkpoint; the next run goes on from it."""
    steady = ("--dropout", 0.1, "--save-interval-updates", 2, "--max-update")
    command = [
        *(SCRIPTS / "fairseq-train", data, "--user-dir", user_dir),
        *("--task", "language_modeling", "--arch", "pe_lm_tiny"),
        *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64),
        *("--tokens-per-sample", 64, "--max-tokens", 512, "--seed", 7),
        *("--optimizer", "adam", "--lr", 0.003, "--save-dir", tmp_path / "b"),
        *("--num-workers", 0, *steady, 100000),
    ]
    running = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # as many threads as the other runs: sums in another order change the key bias,
        # whose gradient is rounding alone, and Adam makes full steps of it
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "b/checkpoint_1_2.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    saved = torch.load(tmp_path / "b/checkpoint_last.pt")
    updates = saved["optimizer_history"][-1]["num_updates"]
    _, log = train(tmp_path / "b", *steady, updates + 2)
    assert f"@ {updates} updates" in log
    train(tmp_path / "a", *steady, updates + 2)
    check_same_end(tmp_path / "a", tmp_path / "b")


def test_generate_validate_and_ensembles(fairseq, data, text, trained, trained_learned):
    common = (data, "--task", "language_modeling")
    out = fairseq(
        "validate", *common, "--path", trained, "--max-tokens", 40000, "--valid-subset", "valid"
    ).stdout
    assert re.search(r"valid on 'valid' subset \| loss [\d.]+", out)
    words = len((text / "valid").read_text().split()) + 60
    assert f"| wpb {words}" in out, "every word counts once, in one batch"
    for path in (trained, f"{trained}:{trained_learned}"):
        out = fairseq(
            "generate",
            *common,
            *("--path", path, "--sample-break-mode", "eos", "--prefix-size", 2),
            *("--gen-subset", "test", "--beam", 3, "--max-len-a", 0, "--max-len-b", 12),
            *("--batch-size", 8, "--skip-invalid-size-inputs-valid-test"),
        ).stdout
        assert len(re.findall(r"^H-\d+\t-?[\d.]+\t\S", out, re.M)) == 60
        assert "nan" not in out.split("Generate")[0].lower().replace("nano", "")


def test_positions_can_be_changed_at_evaluation(fairseq, data, trained, trained_learned):
    options = (data, "--tokens-per-sample", 64, "--max-tokens", 2000)

    def evaluate(path, overrides, length=64, **kwargs):
        return fairseq(
            "eval-lm",
            *options,
            *("--path", path, "--tokens-per-sample", length, "--model-overrides", overrides),
            **kwargs,
        )

    plain = perplexity(evaluate(trained, "{}").stdout)
    strided = perplexity(evaluate(trained, "{'decoder_position_stride': 4}").stdout)
    assert plain != strided
    assert evaluate(trained, "{}", length=256).stdout.count("Perplexity") == 1

    refused = evaluate(trained_learned, "{}", length=128, check=False)
    assert refused.returncode == 1
    assert "is beyond the learned table" in refused.stdout.splitlines()[-1]
    for rule in (
        "{'decoder_position_beyond': 'clamp'}",
        "{'decoder_position_beyond': 'interpolate', 'decoder_position_length': 128}",
    ):
        assert perplexity(evaluate(trained_learned, rule, length=128).stdout) > 1


@pytest.mark.parametrize("flag", ["--fp16", "--bf16", "--amp"])
def test_precisions_train_on_cpu(train, tmp_path, flag):
    options = (flag, "--fp16-init-scale", 4, "--disable-validation", "--max-update")
    _, log = train(tmp_path, *options, 3)
    assert "num_updates 3" in log and all(loss < 12 for loss in losses(log))
    assert ("loss_scale=4" in log) == (flag == "--fp16")
    if flag == "--fp16":
        _, log = train(tmp_path, *options, 6)
        assert "@ 3 updates" in log and "num_updates 6" in log


def test_adaptive_softmax_trains(train, fairseq, data, tmp_path):
    train(
        tmp_path,
        *("--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"),
        *("--adaptive-input-cutoff", "50,100", "--adaptive-softmax-cutoff", "50,100"),
        *("--decoder-layers", 2, "--decoder-attention-heads", 2),
        arch="pe_lm_wiki103",
    )
    out = fairseq(
        "eval-lm",
        data,
        *("--path", tmp_path / "checkpoint_last.pt", "--tokens-per-sample", 64),
        *("--max-tokens", 2000),
    ).stdout
    assert perplexity(out) > 1
