"""The report of several models: what it writes, and what it refuses to compare."""

import copy
import csv

import pytest

from pe_fairseq.errors import UserError
from pe_fairseq.evaluation import report

SIGNATURE = {
    "measure": "extrapolation",
    "mode": "sliding",
    "window": 128,
    "stride": 64,
    "scheme": "alibi",
    "architecture": "pe_lm",
    "size": "4 layers of 128",
    "updates": 400,
    "train_length": 128,
    "seed": 1,
    "overrides": {},
    "checkpoint": "a" * 64,
    "precision": "float32",
    "data": {"corpus": "docs", "split": "test", "sha256": "b" * 64, "documents": 3},
}


def line(perplexity=None, **changes):
    result = {"signature": {**copy.deepcopy(SIGNATURE), **changes}}
    if perplexity is None:
        return {**result, "undefined": "position 128 is beyond the table"}
    return {
        **result,
        "tokens": 100,
        "words_and_lines": 80,
        "nats": 1.0,
        "perplexity_per_token": perplexity / 2,
        "perplexity_per_word": perplexity,
        "tokens_in_full_windows": 50,
        "loss_by_position": {"windows": 2, "width": 64, "nats": [4.0, 3.0]},
    }


RESULTS = [
    line(100.0),
    line(90.125, window=256, stride=128),
    line(110.0, scheme="learned", checkpoint="c" * 64),
    line(scheme="learned", checkpoint="c" * 64, window=256, stride=128),
]


def test_table_csv_and_plot(tmp_path, capsys):
    report.write(RESULTS, tmp_path)
    markdown = (tmp_path / "extrapolation.md").read_text()
    assert "| `alibi` | 100.00 | 90.12 |" in markdown.split("per word")[1]
    assert "| `alibi` | 50.00 | 45.06 |" in markdown.split("per word")[0]
    assert "| `learned` | 110.00 | undefined |" in markdown
    assert "Perplexity of docs test" in markdown
    assert "stride 64, 128" in markdown and "checkpoint:cccccccc" in markdown
    with open(tmp_path / "extrapolation.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["perplexity_per_word"] for row in rows] == ["100.0", "90.125", "110.0", ""]
    assert rows[3]["undefined"] and "scheme:learned" in rows[3]["signature"]
    assert (tmp_path / "extrapolation.png").read_bytes().startswith(b"\x89PNG")
    assert "undefined" in capsys.readouterr().out


def test_several_models_of_a_scheme_have_rows_of_their_own(tmp_path):
    report.write([*RESULTS, line(101.0, checkpoint="d" * 64, seed=2)], tmp_path)
    markdown = (tmp_path / "extrapolation.md").read_text()
    assert "`alibi, seed:1` | 100.00" in markdown
    assert "`alibi, seed:2` | 101.00" in markdown


def test_what_the_label_does_not_tell_apart_is_told_by_the_checkpoint(tmp_path):
    report.write([*RESULTS, line(101.0, checkpoint="d" * 64)], tmp_path)
    markdown = (tmp_path / "extrapolation.md").read_text()
    assert "`alibi, checkpoint:aaaaaaaa` | 100.00" in markdown
    assert "`alibi, checkpoint:dddddddd` | 101.00" in markdown


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"updates": 800}, "alibi, updates:800"),
        ({"size": "2 layers of 64"}, "alibi, size:2 layers of 64"),
        ({"position_stride": 4}, "alibi [position_stride=4]"),
        ({"attention": "performer"}, "alibi, attention:performer"),
    ],
)
def test_models_that_differ_in_more_than_the_scheme_say_so(tmp_path, changes, label):
    report.write([*RESULTS, line(101.0, checkpoint="d" * 64, **changes)], tmp_path)
    assert f"`{label}` | 101.00" in (tmp_path / "extrapolation.md").read_text()


def test_results_from_before_linear_attention_are_of_softmax_attention(tmp_path):
    performer = line(101.0, checkpoint="d" * 64, attention="performer")
    report.write([*RESULTS, performer], tmp_path)
    assert "`alibi, attention:softmax` | 100.00" in (tmp_path / "extrapolation.md").read_text()


def test_overrides_are_named(tmp_path, capsys):
    overrides = {"decoder_position_beyond": "clamp"}
    report.write([*RESULTS, line(99.0, scheme="learned", overrides=overrides)], tmp_path)
    assert "learned [decoder_position_beyond=clamp]" in capsys.readouterr().out
    assert (
        "`learned [decoder_position_beyond=clamp]` | 99.00"
        in (tmp_path / "extrapolation.md").read_text()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "blocks", "window": 512}, "mode"),
        ({"train_length": 64}, "train_length"),
        ({"precision": "bfloat16"}, "precision"),
        ({"data": {"corpus": "docs", "split": "valid"}}, "data"),
        ({"scheme": "rope", "stride": 32}, "stride"),
    ],
)
def test_what_does_not_compare_is_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=f"do not compare.*{message}"):
        report.write([*RESULTS, line(1.0, **changes)], tmp_path)


def test_a_result_of_another_version(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"signature": {"measure": "extrapolation"}}\n')
    with pytest.raises(SystemExit, match="has no 'mode'"):
        report.main([str(tmp_path / "r.jsonl"), "--out", str(tmp_path)])


def test_no_results(tmp_path):
    with pytest.raises(UserError, match="no result"):
        report.write([{"signature": {"measure": "position-stride"}}], tmp_path)
