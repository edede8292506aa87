"""scripts/quickstart.sh with tiny models on a tiny corpus."""

import csv
import sys
from pathlib import Path

import pytest

import pe_fairseq

ROOT = Path(__file__).resolve().parents[2]
PATH = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
TINY = (
    *("--decoder-layers", 1, "--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16),
    *("--decoder-input-dim", 16, "--decoder-output-dim", 16, "--tokens-per-sample", 16),
    *("--max-update", 2, "--num-workers", 0),
)


@pytest.fixture(scope="module")
def quickstart(text, program, tmp_path_factory):
    """Call the script in a folder that has a corpus."""
    out = tmp_path_factory.mktemp("quickstart")
    program(
        *(Path(sys.executable).parent / "pe-fairseq", "corpus", "docs", out / "data"),
        *("--text", text / "train", "--vocabulary", 400),
    )

    def call(*flags, schemes="learned alibi", **options):
        env = {**PATH, "QUICKSTART_OUT": str(out), "QUICKSTART_SCHEMES": schemes}
        return program(
            "bash", ROOT / "scripts" / "quickstart.sh", *flags, env=env, **options
        ).stdout

    return call, out


def test_it_ends_in_a_table_and_goes_on_with_another_scheme(quickstart):
    call, out = quickstart
    said = call(*TINY)
    assert "undefined for learned: position 31 is beyond the learned table" in said
    assert f"wrote {out}/extrapolation.md, .csv and .png" in said
    with open(out / "extrapolation.csv", newline="") as file:
        rows = [
            (row["model"], row["window"], bool(row["nats"])) for row in csv.DictReader(file)
        ]
    assert rows == [
        *(("learned", "16", True), ("learned", "32", False)),
        *(("learned", "64", False), ("learned", "128", False)),
        *(("alibi", str(window), True) for window in (16, 32, 64, 128)),
    ]
    assert (out / "extrapolation.png").stat().st_size > 10_000
    assert list((out / "tensorboard" / "alibi").rglob("events.out.tfevents.*"))

    commands = (out / "commands.sh").read_text()
    assert commands.count("fairseq-train") == 2
    before = (out / "alibi" / "extrapolation.jsonl").read_text()
    call(*TINY, schemes="alibi none")
    commands = (out / "commands.sh").read_text()
    assert commands.count("fairseq-train") == 3, "what was trained is not trained again"
    assert (out / "alibi" / "extrapolation.jsonl").read_text() == before
    assert "| `none` |" in (out / "extrapolation.md").read_text()


def test_the_model_reads_text_by_the_corpus_s_pieces(quickstart):
    _, out = quickstart
    model = pe_fairseq.load(out / "alibi" / "checkpoint_last.pt")
    tokens = model.score("the value of an expression").tokens
    assert "".join(tokens[:-1]) == "▁the▁value▁of▁an▁expression"


def test_other_flags_want_another_folder(quickstart):
    call, _ = quickstart
    said = call("--max-update", 3, check=False)
    assert "other flags" in said.splitlines()[-1] and "QUICKSTART_OUT" in said


def test_help(program):
    out = program("bash", ROOT / "scripts" / "quickstart.sh", "--help").stdout
    assert "QUICKSTART_SCHEMES" in out and "extrapolation.md" in out
