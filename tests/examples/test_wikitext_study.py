"""The parts of examples/wikitext/study.py that need no training."""

import json
import sys
from pathlib import Path

import pytest

from pe_fairseq import positions

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "wikitext"


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, str(EXAMPLE))
    import study

    yield study
    sys.path.remove(str(EXAMPLE))


def test_sixteen_different_schemes(study):
    assert len({str(positions.parse(spec)) for spec in study.SCHEMES.values()}) == 16


def run(study, folder, name, seed, shift):
    """A run's folder with the files that training and evaluation leave."""
    made = study.run_of(folder, name, "4e-3", seed)
    made.folder.mkdir(parents=True)
    log = [
        "2026 | INFO | fairseq_cli.train | num. shared model params: 1,100 (…)",
        '2026 | INFO | valid | {"valid_loss": "7.5", "valid_num_updates": "100"}',
        *(f'2026 | INFO | train_inner | {{"wps": "{wps}"}}' for wps in (900, 1000, 5000)),
        '2026 | INFO | valid | {"valid_loss": "6.25", "valid_num_updates": "400"}',
    ]
    (made.folder / "output").write_text("\n".join(log) + "\n")
    (made.folder / "trained-400.json").write_text('{"seconds": 60, "peak_mib": 800}')

    def line(window, stride, value):
        signature = {"window": window, "position_stride": stride}
        return json.dumps({"signature": signature, "perplexity_per_word": value}) + "\n"

    for split in ("valid", "test"):
        lines = [line(length, 1, 100.0 + length / 8 + shift) for length in study.LENGTHS]
        (made.folder / f"{split}.jsonl").write_text("".join(lines))
    lines = [line(w, s, 200.0 + s + shift) for w in (64, 32) for s in (1, 128 // w)]
    (made.folder / "stride.jsonl").write_text("".join(lines))
    return made


def test_the_table(study, tmp_path):
    noise = [run(study, tmp_path / "noise", "fs-APE", seed, seed) for seed in (1, 2, 3)]
    chosen = {
        "none": run(study, tmp_path, "none", 1, 0.0),
        "fs-APE": run(study, tmp_path, "fs-APE", 1, 1.5),
        "alibi": run(study, tmp_path, "alibi", 1, 2.5),
    }
    assert study.valid_loss(chosen["none"], 100) == 7.5
    assert study.valid_loss(chosen["none"], 400) == 6.25
    rows = [line.split(" | ") for line in study.table(chosen, noise).splitlines()]
    [none] = [row for row in rows if row[0] == "| none" and row[1] == "`none`"]
    # a standard deviation of 1: what is less than 2 above the best is a tie
    assert none[2:4] == ["**116.0**", "**132.0**"] and none[10] == "**202.0**"
    [sinusoidal] = [row for row in rows if row[0] == "| fs-APE" and "layout" in row[1]]
    assert sinusoidal[2] == "**117.5**"
    [alibi] = [row for row in rows if row[0] == "| alibi" and row[1] == "`alibi`"]
    assert alibi[2] == "118.5"
    assert ["| none", "4e-3", "0", "1,000", "800 |"] in rows


def test_articles(study, tmp_path):
    from prepare import read_articles

    text = [" ", " = One = ", " ", " text ", " ", " = = Part = = ", " ", " x = y = z ", " "]
    text += [" = Two = ", " ", " = not a title = ", " text ", " "]
    (tmp_path / "tokens").write_text("\n".join(text) + "\n")
    assert read_articles(tmp_path / "tokens") == [text[:9], text[9:]]
