"""Schemes through fairseq's commands: spawned processes, resumed, evaluated, generated from."""

import re
import sys
from pathlib import Path

import pytest

SUMS = [
    "learnable-sinusoidal+learnable-sinusoidal-relative(clip=8)+t5+rope(fraction=0.5)",
    "learned+shaw(clip=4,per_head=true)+alibi",
]


@pytest.mark.parametrize("position", SUMS)
def test_a_sum_of_all_families(train, fairseq, data, tmp_path, position):
    two = ("--distributed-world-size", 2, "--weight-decay", 0.1, "--max-update")
    train(tmp_path, *two, 2, position=position)
    _, log = train(tmp_path, *two, 4, position=position)
    assert "@ 2 updates" in log and "num_updates 4" in log
    checkpoint = tmp_path / "checkpoint_last.pt"
    out = fairseq(
        "eval-lm",
        data,
        *("--path", checkpoint, "--tokens-per-sample", 64, "--max-tokens", 2000),
        *("--context-window", 32),
    ).stdout
    assert 50 < float(re.search(r"Perplexity: ([\d.]+)", out)[1]) < 5000
    out = fairseq(
        "interactive",
        data,
        *("--task", "language_modeling", "--path", checkpoint, "--beam", 3, "--max-len-b", 8),
        input="the value of\n",
    ).stdout
    assert re.search(r"^H-0\t-[\d.]+\tthe value of", out, re.M)


def test_a_named_architecture(train, fairseq, data, tmp_path):
    tiny = ("--decoder-layers", 1, "--decoder-attention-heads", 2, "--max-update", 2)
    train(tmp_path, *tiny, arch="pe_lm_alibi", position=None)
    out = fairseq(
        "eval-lm",
        data,
        *("--path", tmp_path / "checkpoint_last.pt", "--tokens-per-sample", 256),
        *("--max-tokens", 2000),
    ).stdout
    assert "--decoder-position 'alibi'" in out and "Perplexity" in out
    _, log = train(tmp_path, *tiny, arch="pe_lm_alibi", position="rope", check=False)
    assert "pe-fairseq: error: --arch pe_lm_alibi is pe_lm with 'alibi'" in log


SPAWNED = """
from argparse import Namespace

from fairseq.distributed import utils as distributed_utils
import pe_fairseq


def main(cfg):
    import torch
    from build import SOFTMAX, build, tokens

    total = torch.zeros(1)
    for name in SOFTMAX:
        total += build(decoder_position=name)(tokens())[0].isfinite().all()
    torch.distributed.all_reduce(total)
    if torch.distributed.get_rank() == 0:
        print("built", int(total), "of", 2 * len(SOFTMAX))


if __name__ == "__main__":
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    whole = OmegaConf.structured(FairseqConfig())
    cfg = OmegaConf.create(OmegaConf.to_container(whole, enum_to_str=True))
    cfg.model = None
    cfg.common.cpu = True
    cfg.distributed_training.distributed_world_size = 2
    distributed_utils.call_main(cfg, main)
"""


def test_every_scheme_in_spawned_processes(program, tmp_path):
    """A newly registered scheme joins: each is built and run in two processes."""
    (tmp_path / "spawned.py").write_text(SPAWNED)
    tests = Path(__file__).resolve().parents[1]
    out = program(
        sys.executable, tmp_path / "spawned.py", env={"PYTHONPATH": str(tests)}
    ).stdout
    built, expected = re.search(r"built (\d+) of (\d+)", out).groups()
    assert built == expected
