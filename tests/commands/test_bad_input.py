"""Bad input is one readable line and a non-zero status."""

import shutil
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def refused(fairseq):
    """Run a command that must fail; returns its one line of error."""

    def call(name, *arguments, **options):
        done = fairseq(name, *arguments, check=False, **options)
        lines = [line for line in done.stdout.splitlines() if "pe-fairseq: error:" in line]
        assert done.returncode == 1, done.stdout[-2000:]
        assert len(lines) == 1 and lines[0] == done.stdout.splitlines()[-1], done.stdout[-2000:]
        assert "Traceback" not in done.stdout
        return lines[0]

    return call


def training(data, *arguments):
    return (
        data,
        *("--task", "language_modeling", "--arch", "pe_lm_tiny", "--tokens-per-sample", 64),
        *("--max-tokens", 512, "--optimizer", "adam", "--lr", 0.003, "--max-update", 1),
        *arguments,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--decoder-position", "sinusoidl"), "did you mean 'sinusoidal'"),
        (("--decoder-position", "sinusoidal(lay=halves)"), "did you mean 'layout'"),
        (("--decoder-position", "sinusoidal(base=x)"), "takes a number, not 'x'"),
        (("--decoder-position", "sinusoidal(base=-3)"), "must be a finite number above 1"),
        (("--decoder-position", "${task.data}"), "contains '${'"),
        (("--decoder-learned-pos",), "write --decoder-position learned"),
        (("--no-token-positional-embeddings",), "write --decoder-position none"),
        (
            ("--decoder-position", "learned", "--max-target-positions", 32),
            "position 63 is beyond the learned table, which has 32",
        ),
    ],
)
def test_positions(refused, data, tmp_path, arguments, message):
    line = refused("train", *training(data, *arguments, "--save-dir", tmp_path))
    assert message in line


def evaluation(data, path, *arguments):
    return data, "--path", path, "--tokens-per-sample", 64, "--max-tokens", 2000, *arguments


def test_override_that_nothing_takes(refused, data, trained):
    line = refused(
        "eval-lm",
        *evaluation(data, trained, "--model-overrides", "{'decoder_postion': 'none'}"),
    )
    assert "the checkpoint's model takes no 'decoder_postion'" in line
    assert "did you mean 'decoder_position'" in line


def test_a_window_as_long_as_the_block(refused, data, trained):
    line = refused("eval-lm", *evaluation(data, trained, "--context-window", 64))
    assert "--context-window must be below --tokens-per-sample" in line


def test_evaluation_in_several_processes(fairseq, data, trained):
    done = fairseq(
        "eval-lm", *evaluation(data, trained, "--distributed-world-size", 2), check=False
    )
    assert done.returncode == 1 and "Perplexity" not in done.stdout
    assert "in several processes prints the perplexity of one process's share" in done.stdout


def test_resumed_with_another_optimizer(refused, data, trained, tmp_path):
    shutil.copy(trained, tmp_path / "checkpoint_last.pt")
    sizes = ("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64)
    line = refused("train", *training(data, "--save-dir", tmp_path, "--bf16", *sizes))
    assert "does not continue this run: Optimizer does not match" in line


def test_override_that_is_no_dict(refused, data, trained):
    line = refused("eval-lm", *evaluation(data, trained, "--model-overrides", "stride=2"))
    assert "takes a Python dict in quotes" in line


def test_override_of_the_wrong_type(refused, data, trained):
    line = refused(
        "eval-lm",
        *evaluation(data, trained, "--model-overrides", "{'decoder_position_stride': 'two'}"),
    )
    assert "'two'" in line


def test_checkpoint_that_is_not_there(refused, data, tmp_path):
    assert "not found" in refused("eval-lm", *evaluation(data, tmp_path / "no.pt"))


def test_truncated_checkpoint(refused, data, trained, tmp_path):
    (tmp_path / "cut.pt").write_bytes(trained.read_bytes()[:5000])
    line = refused("eval-lm", *evaluation(data, tmp_path / "cut.pt"))
    assert "cut.pt is truncated, corrupt or no checkpoint" in line


def test_checkpoint_with_a_foreign_type(refused, data, trained, tmp_path):
    state = torch.load(trained)
    state["extra"] = pytest.approx(1)
    torch.save(state, tmp_path / "odd.pt")
    line = refused("eval-lm", *evaluation(data, tmp_path / "odd.pt"))
    assert "odd.pt holds _pytest." in line
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1" in line


@pytest.mark.parametrize("other", ["none", "learned", "sinusoidal(layout=interleaved)"])
def test_checkpoint_from_another_scheme(refused, data, trained, tmp_path, other):
    shutil.copy(trained, tmp_path / "checkpoint_last.pt")
    line = refused(
        "train",
        *training(data, "--save-dir", tmp_path, "--decoder-position", other),
        *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64),
    )
    assert "was trained with --decoder-position 'sinusoidal'" in line
    assert f"this run says '{other}'" in line


def test_checkpoint_trained_with_other_positions(refused, data, trained, tmp_path):
    shutil.copy(trained, tmp_path / "checkpoint_last.pt")
    line = refused(
        "train", *training(data, "--save-dir", tmp_path, "--decoder-position-stride", 4)
    )
    assert "was trained with --decoder-position-stride '1', this run says '4'" in line


def test_data_without_a_split(refused, data, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(data, half)
    for path in half.glob("valid*"):
        path.unlink()
    line = refused("train", *training(half, "--save-dir", tmp_path))
    assert "Dataset not found: valid" in line


def test_data_without_a_dictionary(refused, data, trained, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(data, half)
    (half / "dict.txt").unlink()
    assert "dict.txt" in refused("eval-lm", *evaluation(half, trained))


def test_dictionary_of_another_vocabulary(refused, data, trained, tmp_path):
    for name, change in (
        ("smaller", lambda lines: lines[:-5]),
        ("shuffled", lambda lines: lines[::-1]),
    ):
        other = tmp_path / name
        shutil.copytree(data, other)
        lines = (other / "dict.txt").read_text().splitlines()
        (other / "dict.txt").write_text("\n".join(change(lines)) + "\n")
        line = refused("eval-lm", *evaluation(other, trained))
        assert "is not the one that the checkpoint was trained with" in line


def test_empty_text(refused, text, program, tmp_path):
    from conftest import SCRIPTS

    (tmp_path / "nothing").write_text("")
    texts = (
        "--only-source",
        "--trainpref",
        text / "train",
        "--validpref",
        tmp_path / "nothing",
    )
    assert "nothing is empty" in refused("preprocess", *texts, "--destdir", tmp_path / "a")
    program(SCRIPTS / "fairseq-preprocess", *texts, "--destdir", tmp_path / "bin")
    line = refused("train", *training(tmp_path / "bin", "--save-dir", tmp_path))
    assert "the split 'valid' in" in line and "holds no text" in line


def test_text_that_is_not_utf8(refused, text, tmp_path):
    (tmp_path / "train").write_bytes(b"fine words\n" * 100000 + b"bad \xff byte\n")
    line = refused(
        "preprocess",
        *("--only-source", "--trainpref", tmp_path / "train", "--validpref", text / "valid"),
        *("--destdir", tmp_path / "bin"),
    )
    assert "train is not UTF-8: byte 0xff in line 100001" in line


def test_the_checkout_as_user_dir(refused, data, tmp_path):
    checkout = Path(__file__).resolve().parents[2]
    line = refused("train", *training(data, "--save-dir", tmp_path), user_dir=checkout)
    assert f"give its package folder: --user-dir {checkout / 'pe_fairseq'}" in line
