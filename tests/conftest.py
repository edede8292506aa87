"""Real text, and fairseq's commands as subprocesses."""

import os
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import pytest

import pe_fairseq.user_dir

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SCRIPTS = Path(sys.executable).parent
USER_DIR = pe_fairseq.user_dir.package_dir()


@pytest.fixture(scope="session")
def user_dir():
    return USER_DIR


@pytest.fixture(scope="session")
def wikitext2():
    """The folder of the complete WikiText-2 corpus."""
    folder = SHARED / "wikitext2"
    if not folder.is_dir():
        pytest.skip("the WikiText-2 corpus is not at ../shared/data/wikitext2")
    return folder


def run(*command, input=None, check=True, timeout=300, env=None, cwd=None):
    """Run a command; its output is one text, and a failure shows it."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        input=input,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
    )
    if check:
        assert done.returncode == 0, done.stdout[-4000:]
    return done


@pytest.fixture(scope="session")
def fairseq():
    """Call ``fairseq-NAME`` with our plug-in."""

    def call(name, *arguments, user_dir=USER_DIR, **options):
        plugin = () if user_dir is None else ("--user-dir", user_dir)
        return run(SCRIPTS / f"fairseq-{name}", *plugin, *arguments, **options)

    return call


@pytest.fixture(scope="session")
def program():
    """Call any command: words as given."""
    return run


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """English prose from the installed Python, in three splits of one sentence a line."""
    folder = tmp_path_factory.mktemp("text")
    topics = pydoc_data.topics.topics
    lines = [
        " ".join(line.lower().split())
        for name in sorted(topics)
        for line in topics[name].split("\n\n")
        if len(line.split()) > 5
    ]
    for split, part in (
        ("train", lines[:500]),
        ("valid", lines[500:560]),
        ("test", lines[560:620]),
    ):
        (folder / split).write_text("\n".join(part) + "\n", encoding="utf-8")
    return folder


def preprocess(source, target, *arguments):
    run(
        SCRIPTS / "fairseq-preprocess",
        "--only-source",
        *("--trainpref", source / "train"),
        *("--validpref", source / "valid"),
        *("--testpref", source / "test"),
        *("--destdir", target),
        *arguments,
    )
    return target


@pytest.fixture(scope="session")
def data(text, tmp_path_factory):
    """The text, binarised by fairseq-preprocess, words of one occurrence left out."""
    target = tmp_path_factory.mktemp("data") / "bin"
    return preprocess(text, target, "--thresholdsrc", 2)


@pytest.fixture(scope="session")
def train(fairseq, data):
    """Train a tiny model; returns the checkpoint folder and the log."""

    def call(save_dir, *arguments, position="sinusoidal", arch="pe_lm_tiny", **options):
        scheme = () if position is None else ("--decoder-position", position)
        done = fairseq(
            "train",
            data,
            *("--task", "language_modeling", "--arch", arch, *scheme),
            *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64),
            *("--tokens-per-sample", 64, "--max-tokens", 512, "--seed", 7),
            *("--optimizer", "adam", "--lr", 0.003, "--save-dir", save_dir),
            *("--log-format", "simple", "--log-interval", 1, "--num-workers", 0),
            *("--max-update", 6, "--no-epoch-checkpoints"),
            *arguments,
            **options,
        )
        return save_dir, done.stdout

    return call


@pytest.fixture(scope="session")
def trained(train, tmp_path_factory):
    """A model with sinusoidal positions, trained for six updates."""
    folder, _ = train(tmp_path_factory.mktemp("trained"))
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def trained_learned(train, tmp_path_factory):
    """A model with learned positions, trained for six updates."""
    folder, _ = train(tmp_path_factory.mktemp("learned"), position="learned")
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def stock_checkpoint(train, tmp_path_factory):
    """Stock fairseq's transformer_lm, post-norm, trained for six updates."""
    folder, _ = train(
        tmp_path_factory.mktemp("stock"),
        *("--decoder-input-dim", 32, "--decoder-output-dim", 32),
        *("--decoder-layers", 2, "--decoder-attention-heads", 4),
        arch="transformer_lm",
        position=None,
    )
    return folder / "checkpoint_last.pt"
