"""The scripts of examples/wikitext, on the first lines of WikiText-2."""

import lzma
import re
import sys
from pathlib import Path

import pytest

from pe_fairseq.corpus import manifest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "wikitext"
PATH = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


@pytest.fixture(scope="module")
def source(wikitext2, tmp_path_factory):
    """A folder of token files with the first lines of every split."""
    folder = tmp_path_factory.mktemp("wikitext")
    for split in ("train", "valid", "test"):
        name = f"wiki.{split}.tokens"
        with lzma.open(wikitext2 / f"{name}.xz", "rt", encoding="utf-8") as file:
            (folder / name).write_text("".join(file.readlines()[:60]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def prepared(source, program, tmp_path_factory):
    target = tmp_path_factory.mktemp("prepared") / "data"
    program(sys.executable, EXAMPLE / "prepare.py", source, target)
    return target


def test_the_manifest_says_what_was_prepared(source, prepared):
    split = manifest.read(prepared).splits["test"]
    text = (source / "wiki.test.tokens").read_text()
    assert split.scored_words == len(text.split()) + text.count("\n")
    assert sum(split.documents) == text.count("\n")


def test_a_second_time_changes_nothing(source, prepared, program):
    before = (prepared / "manifest.json").stat().st_mtime
    program(sys.executable, EXAMPLE / "prepare.py", source, prepared)
    assert (prepared / "manifest.json").stat().st_mtime == before


def test_train_and_evaluate(prepared, program, tmp_path):
    tiny = ("--max-update", 2, "--update-freq", 1, "--tokens-per-sample", 64)
    tiny += ("--decoder-layers", 1, "--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 32)
    tiny += ("--decoder-input-dim", 32, "--decoder-output-dim", 32, "--max-tokens", 512)
    save = tmp_path / "learned"
    program(
        "bash", EXAMPLE / "train.sh", prepared, save, *tiny,
        env={**PATH, "POSITION": "learned"}, cwd=tmp_path,
    )  # fmt: skip
    out = program(
        "bash", EXAMPLE / "evaluate.sh", prepared, save / "checkpoint_last.pt",
        *("--tokens-per-sample", 64, "--context-window", 32),
        env=PATH, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert re.search(r"Perplexity: [\d.]+", out)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "wiki.valid.tokens"), (b"", "empty"), (b" word \xff \n", "UTF-8")],
    ids=["missing", "empty", "not UTF-8"],
)
def test_bad_files(source, program, tmp_path, content, message):
    for split in ("train", "valid", "test"):
        name = f"wiki.{split}.tokens"
        if split != "valid":
            (tmp_path / name).write_bytes((source / name).read_bytes())
        elif content is not None:
            (tmp_path / name).write_bytes(content)
    done = program(
        sys.executable, EXAMPLE / "prepare.py", tmp_path, tmp_path / "data", check=False
    )
    assert done.returncode == 1
    assert message in done.stdout.splitlines()[-1] and "Traceback" not in done.stdout
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLE.glob("*.s*")))
def test_scripts_parse(script, program):
    program("bash", "-n", EXAMPLE / script)
