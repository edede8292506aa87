"""pe-fairseq schemes, and the README's table that is made from it."""

import json
from pathlib import Path

import pytest

from pe_fairseq import cli, schemes
from pe_fairseq.positions import SCHEMES, ModelSize

README = Path(__file__).resolve().parents[1] / "README.md"
PE_LM = ModelSize(512, max_positions=512, heads=8, layers=6)


def test_the_readme_s_table_is_up_to_date():
    """Make it again with: python -c 'import tests.test_schemes_table as t; t.rewrite()'"""
    assert schemes.markdown(PE_LM) in README.read_text()


def rewrite():
    """Replace the README's table by the current one."""
    text = README.read_text()
    start = text.index("| scheme | where |")
    end = text.index("\n\n", start)
    README.write_text(text[:start] + schemes.markdown(PE_LM) + text[end:])


def printed(capsys, *arguments):
    try:
        cli.main(["schemes", *arguments])
    except SystemExit as exit:
        assert not exit.code
    return capsys.readouterr().out


def test_every_scheme_is_listed(capsys):
    out = printed(capsys)
    assert all(name[:6] in out for name in SCHEMES)


def test_json(capsys):
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--json"))}
    assert list(rows) == list(SCHEMES)
    assert rows["learned"]["longest"] == 512 and rows["learned"]["parameters"] == 512 * 512
    assert rows["rope"]["longest"] is None and rows["rope"]["attention"] == [
        "softmax",
        "linear",
    ]
    assert rows["permute2d"]["longest"] == rows["learned2d"]["longest"] == 1 + 32 * 32 + 1
    assert rows["alibi"]["attention"] == ["softmax"]
    assert rows["none"]["aliases"] == ["nope"]
    assert all(row["paper"] and row["summary"] for row in rows.values())


def test_odd_sizes(capsys):
    rows = json.loads(printed(capsys, "--embed-dim", "16", "--heads", "8", "--json"))
    missing = {row["name"] for row in rows if row["parameters"] is None}
    assert missing == {"sinusoidal-relative", "learnable-sinusoidal-relative"}
    for arguments in (("--heads", "0"), ("--heads", "7"), ("--layers", "-1")):
        with pytest.raises(SystemExit) as exit:
            cli.main(["schemes", *arguments])
        assert "pe-fairseq: error:" in str(exit.value.code)


def test_a_size_can_be_given(capsys):
    size = ("--embed-dim", "768", "--heads", "12", "--layers", "12", "--json")
    rows = {row["name"]: row for row in json.loads(printed(capsys, *size))}
    assert rows["shaw"]["parameters"] == 198_144
