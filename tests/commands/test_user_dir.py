"""Where the plug-in may be, and what two copies of it do."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from pe_fairseq import user_dir as this

SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def copy(user_dir, tmp_path):
    """The package's code in another folder."""
    target = tmp_path / "other" / "pe_fairseq"
    shutil.copytree(user_dir, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def evaluation(data, path):
    return (
        *("eval-lm", data, "--path", path, "--tokens-per-sample", 64),
        *("--max-tokens", 2000),
    )


@pytest.fixture(scope="module")
def installed(program):
    """The folder that the command prints: the checkout's, or that of the installed copy."""
    return program(SCRIPTS / "pe-fairseq", "user-dir").stdout.strip().splitlines()[-1]


def test_the_command_prints_the_folder(installed, user_dir):
    assert Path(installed).name == "pe_fairseq"
    assert this.code_hash(installed) == this.code_hash(user_dir)


@pytest.mark.parametrize("given", ["absolute", "relative", "link"])
def test_ways_to_name_it(fairseq, data, trained, user_dir, tmp_path, given):
    path = {
        "absolute": user_dir,
        "relative": os.path.relpath(user_dir, tmp_path),
        "link": tmp_path / "links" / "pe_fairseq",
    }[given]
    if given == "link":
        path.parent.mkdir()
        path.symlink_to(user_dir)
    out = fairseq(*evaluation(data, trained), user_dir=path, cwd=tmp_path).stdout
    assert "Perplexity" in out


def test_another_copy_of_the_same_code(fairseq, data, trained, copy):
    """The checkout as --user-dir while the package is installed."""
    assert this.code_hash(copy) == this.code_hash(this.package_dir())
    assert "Perplexity" in fairseq(*evaluation(data, trained), user_dir=copy).stdout


def test_another_copy_with_other_code(fairseq, data, trained, copy, installed):
    with open(copy / "errors.py", "a") as file:
        file.write("\nCHANGED = True\n")
    done = fairseq(*evaluation(data, trained), user_dir=copy, check=False)
    line = done.stdout.splitlines()[-1]
    assert done.returncode == 1 and line.startswith("pe-fairseq: error: two copies")
    assert str(copy) in line and installed in line


def test_another_copy_when_the_package_is_imported_first(
    program, copy, user_dir, data, trained
):
    code = (
        "import sys, pe_fairseq\n"
        "from fairseq_cli.eval_lm import cli_main\n"
        f"sys.argv = ['fairseq-eval-lm', {str(data)!r}, '--user-dir', {str(copy)!r}, "
        f"'--path', {str(trained)!r}, '--tokens-per-sample', '64', '--max-tokens', '2000']\n"
        "cli_main()\n"
    )
    assert "Perplexity" in program(sys.executable, "-c", code).stdout
    with open(copy / "errors.py", "a") as file:
        file.write("\nCHANGED = True\n")
    done = program(sys.executable, "-c", code, check=False)
    assert done.returncode == 1
    assert "two copies" in done.stdout and str(copy) in done.stdout


def test_spawned_processes_know_the_plug_in(train, copy, tmp_path):
    """Two processes, the plug-in by a path of its own, from another folder."""
    _, log = train(
        tmp_path / "model",
        *("--distributed-world-size", 2, "--max-update", 2),
        user_dir=copy,
        cwd=tmp_path,
    )
    assert "num_updates 2" in log


def test_the_hash_sees_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = this.code_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("no code")
    assert this.code_hash(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert this.code_hash(tmp_path) != before
