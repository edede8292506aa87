"""Two processes over gloo give what one process gives with twice the update frequency."""

import sys
from pathlib import Path

import pytest
import torch

SAME = ("--dropout", 0, "--attention-dropout", 0, "--activation-dropout", 0)
SAME = (*SAME, "--max-update", 4)


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    folder, _ = train(tmp_path_factory.mktemp("alone"), *SAME, "--update-freq", 2)
    return folder


def check_equal(alone, together):
    a, b = (torch.load(folder / "checkpoint_last.pt") for folder in (alone, together))
    assert a["extra_state"]["val_loss"] == pytest.approx(b["extra_state"]["val_loss"], abs=1e-4)
    for name, value in a["model"].items():
        assert torch.allclose(value, b["model"][name], atol=1e-4), name


@pytest.mark.parametrize("backend", ["pytorch_ddp", "legacy_ddp"])
def test_spawned_by_fairseq(train, alone, tmp_path, backend):
    _, log = train(tmp_path, *SAME, "--distributed-world-size", 2, "--ddp-backend", backend)
    assert "the distributed backend is gloo" in log
    check_equal(alone, tmp_path)
    if backend == "legacy_ddp":
        return
    # and it resumes: rank 0 reads the checkpoint and sends it to the other
    _, log = train(
        tmp_path, *SAME, "--max-update", 6, "--distributed-world-size", 2,
        *("--ddp-backend", backend),
    )  # fmt: skip
    assert "@ 4 updates" in log and "num_updates 6" in log
    again = ("--max-update", 6, "--distributed-world-size", 2, "--ddp-backend", backend)
    assert "6 of 6 updates are done" in train(tmp_path, *SAME, *again)[1]


def test_an_explicit_init_method_trains(train, alone, tmp_path):
    """Stock fairseq spawns no process here, trains nothing, and exits 0."""
    method = f"file://{tmp_path}/store"
    train(tmp_path, *SAME, "--distributed-world-size", 2, "--distributed-init-method", method)
    check_equal(alone, tmp_path)


def test_started_by_torchrun(program, data, user_dir, alone, tmp_path):
    program(
        *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2),
        *("--master_port", 29517, Path(sys.executable).parent / "fairseq-train", data),
        *("--user-dir", user_dir, "--task", "language_modeling", "--arch", "pe_lm_tiny"),
        *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64),
        *("--tokens-per-sample", 64, "--max-tokens", 512, "--seed", 7, "--num-workers", 0),
        *("--optimizer", "adam", "--lr", 0.003, "--save-dir", tmp_path, *SAME),
        "--no-epoch-checkpoints",
    )
    check_equal(alone, tmp_path)


def test_a_bad_flag_is_one_line_from_spawned_processes(train, tmp_path):
    _, log = train(
        tmp_path,
        *("--distributed-world-size", 2, "--decoder-position-stride", 0),
        check=False,
    )
    assert "pe-fairseq: error: the position stride is 0" in log
    assert "Traceback" not in log
