"""The example of docs/adding_a_scheme.md, run as it stands."""

import math
import re
from pathlib import Path

import pytest
import torch

from pe_fairseq import positions

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "adding_a_scheme.md"


@pytest.fixture
def example():
    """Register the guide's scheme for one test."""
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[0]
    names = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    yield names
    del positions.SCHEMES["log-bias"]


def test_the_example_is_short():
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 35


def test_the_example_works_in_a_model(example):
    from build import build, pad_left, tokens

    for spec in ("log-bias", "learned+log-bias"):
        model, rows, state = build(decoder_position=spec), tokens(), {}
        full = model(rows)[0]
        assert torch.allclose(model(pad_left(rows, 3))[0][:, 3:], full, atol=1e-5)
        steps = [model(rows[:, :n], incremental_state=state)[0] for n in (4, 9, 20)]
        assert torch.allclose(torch.cat(steps, dim=1), full, atol=1e-5)
        changed = rows.clone()
        changed[:, 6:] = 4
        assert torch.equal(model(changed)[0][:, :6], full[:, :6])
        full.sum().backward()
        term = model.decoder.layers[0].self_attn.positions.terms[0]
        assert term.strength.grad.abs().max() > 0


def test_the_guide_s_reference_holds(example, monkeypatch):
    import test_references

    block = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[1]
    names = {**vars(test_references), "REFERENCES": {}}
    exec(compile(block, str(GUIDE), "exec"), names)
    monkeypatch.setitem(test_references.REFERENCES, "log-bias", names["REFERENCES"]["log-bias"])
    test_references.test_output_and_every_gradient("log-bias", causal=True)


def test_the_example_is_its_formula(example):
    term = example["LogPenalty"](2, torch.Generator())
    bias = term.per_distance(torch.tensor([-3, 0, 5]))
    for head in range(2):
        for column, m in enumerate((-3, 0, 5)):
            expected = -term.strength[head].item() * math.log(1 + abs(m))
            assert bias[head, column].item() == pytest.approx(expected, abs=1e-6)
