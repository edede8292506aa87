"""pe-fairseq doctor: what it finds, and its exit status."""

import importlib.metadata
import sys

import pytest
import torch
from conftest import SCRIPTS

import pe_fairseq
from pe_fairseq import cli, doctor
from pe_fairseq.attention import fla


def statuses(findings):
    return {finding.subject: finding.status for finding in findings}


def test_a_healthy_machine(capsys):
    assert doctor.main() == 0
    out = capsys.readouterr().out
    for word in ("python", "torch", "fairseq", "gloo", "--bf16", "apex", "flash attention"):
        assert word in out


def test_two_distributions_of_fairseq(monkeypatch, capsys):
    monkeypatch.setattr(
        importlib.metadata,
        "packages_distributions",
        lambda: {"fairseq": ["ve-fairseq", "fairseq-fixed"]},
    )
    (finding,) = doctor.check_fairseq()
    assert finding.status == doctor.FAIL
    assert "fairseq-fixed and ve-fairseq are installed" in finding.text
    assert doctor.main() == 1
    assert "1 of" in capsys.readouterr().err


def test_no_fairseq(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "packages_distributions", dict)
    assert statuses(doctor.check_fairseq()) == {"fairseq": doctor.FAIL}


def test_a_fairseq_that_does_not_import(monkeypatch):
    monkeypatch.setattr(pe_fairseq, "FAIRSEQ_ERROR", ValueError("mutable default"))
    (finding,) = doctor.check_fairseq()
    assert finding.status == doctor.FAIL and "mutable default" in finding.text


def test_a_fairseq_that_breaks_python(program, tmp_path):
    """Like the official 0.12.2 on Python 3.11; the doctor must live to tell."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq" / "__init__.py").write_text("raise ValueError('mutable default')")
    done = program(
        SCRIPTS / "pe-fairseq", "doctor", env={"PYTHONPATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 1
    assert "does not import (mutable default)" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_check_that_breaks_is_a_finding(monkeypatch, capsys):
    def check_devices():
        raise ImportError("libcudart.so is missing\nmore")

    monkeypatch.setattr(doctor, "CHECKS", (check_devices,))
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert "devices" in out and "ImportError: libcudart.so is missing" in out


def test_another_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    assert statuses(doctor.check_versions())["python"] == doctor.FAIL


def test_a_missing_library(monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "sacrebleu":
            raise importlib.metadata.PackageNotFoundError
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert statuses(doctor.check_versions())["sacrebleu"] == doctor.FAIL


@pytest.mark.parametrize(("right", "status"), [(False, doctor.FAIL), (True, doctor.OK)])
def test_apex(monkeypatch, tmp_path, right, status):
    """PyPI's apex is a web toolkit; NVIDIA's has the modules that fairseq looks for."""
    package = tmp_path / "apex"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("normalization", "multi_tensor_apply") if right else ():
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "apex"]:
        monkeypatch.delitem(sys.modules, name)
    (finding,) = doctor.check_apex()
    assert finding.status == status
    if not right:
        assert "not NVIDIA's" in finding.text
    for name in [name for name in sys.modules if name.partition(".")[0] == "apex"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("gpu", "version", "switch", "status", "text"),
    [
        (True, "0.6.0", "1", doctor.OK, "0.6.0, for causal linear attention on CUDA"),
        (False, "0.6.0", "1", doctor.NOTE, "it needs a GPU; linear attention goes by torch"),
        (True, "0.6.0", "0", doctor.NOTE, "PE_FAIRSEQ_FLA=0; linear attention goes by torch"),
        (True, "0.5.2", "1", doctor.NOTE, "0.5.2 is older than 0.6; linear"),
        (True, None, "1", doctor.NOTE, "not installed (pip install 'pe-fairseq[gpu]')"),
    ],
)
def test_flash_linear_attention(monkeypatch, gpu, version, switch, status, text):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(fla, "installed_version", lambda: version)
    monkeypatch.setenv("PE_FAIRSEQ_FLA", switch)
    *_, finding = doctor.check_fused()
    assert finding.subject == "flash-linear-attention"
    assert finding.status == status and text in finding.text


def test_the_command_exits_with_the_result(monkeypatch):
    monkeypatch.setattr(doctor, "main", lambda: 1)
    with pytest.raises(SystemExit) as exit:
        cli.main(["doctor"])
    assert exit.value.code == 1


def test_convert_says_what_it_did(stock_checkpoint, tmp_path, capsys):
    target = tmp_path / "ours.pt"
    with pytest.raises(SystemExit) as exit:
        cli.main(["convert", str(stock_checkpoint), str(target)])
    assert not exit.value.code
    assert (
        f"wrote {target}: pe_lm with --decoder-position sinusoidal" in capsys.readouterr().out
    )
    with pytest.raises(SystemExit) as exit:
        cli.main(["convert", str(stock_checkpoint), str(target)])
    assert "does not overwrite" in str(exit.value.code)
