"""Checkpoints load by an allow-list, and a bad one is named."""

import argparse
import os
import pickle

import numpy
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from pe_fairseq.compat import checkpoints
from pe_fairseq.errors import UserError


def save(path, **entries):
    config = {"model": argparse.Namespace(a=1), "task": {"_name": "language_modeling"}}
    state = {
        "args": None,
        "cfg": config,
        "model": {},
        "optimizer_history": [{"num_updates": 1}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **entries,
    }
    for history in state["optimizer_history"]:
        history.update(optimizer_name="x", lr_scheduler_state={})
    torch.save(state, path)
    return str(path)


class Anything:
    """A type that no list knows."""


def test_types_of_real_checkpoints_load(tmp_path):
    safe = {
        "namespace": argparse.Namespace(x=[1, "y"]),
        "omegaconf": OmegaConf.create({"a": {"b": [1, 2.5, None, "text", True]}}),
        "scalar": numpy.float64(0.5),
        "array": numpy.arange(3),
        "strings": numpy.array(["a", "bc"]),
    }
    path = save(tmp_path / "c.pt", safe=safe)
    loaded = checkpoint_utils.load_checkpoint_to_cpu(path)["safe"]
    assert loaded["namespace"] == safe["namespace"]
    assert loaded["omegaconf"] == safe["omegaconf"]
    assert loaded["scalar"] == 0.5 and loaded["array"].tolist() == [0, 1, 2]
    assert loaded["strings"].tolist() == ["a", "bc"]


def test_a_dataclass_of_fairseq_loads(tmp_path):
    from fairseq.tasks.language_modeling import LanguageModelingConfig

    path = save(tmp_path / "c.pt", dataclass=LanguageModelingConfig(tokens_per_sample=9))
    assert checkpoint_utils.load_checkpoint_to_cpu(path)["dataclass"].tokens_per_sample == 9


def test_numpy_1_names_load(tmp_path):
    """A checkpoint written by numpy 1 calls its scalars numpy.core.multiarray.scalar."""
    path = save(tmp_path / "c.pt", best=numpy.float64(2.5))
    data = (tmp_path / "c.pt").read_bytes()
    assert b"numpy._core.multiarray" in data
    old = [
        name
        for entry in checkpoints.safe_types()
        if isinstance(entry, tuple)
        for name in [entry[1]]
    ]
    assert "numpy.core.multiarray.scalar" in old
    assert "numpy.core.multiarray._reconstruct" in old
    assert checkpoint_utils.load_checkpoint_to_cpu(path)["best"] == 2.5


def test_other_types_are_refused_by_name(tmp_path):
    path = save(tmp_path / "c.pt", danger=Anything())
    with pytest.raises(UserError) as error:
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert f"{__name__}.Anything" in str(error.value)
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1" in str(error.value)
    assert path in str(error.value)


class Attack:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


def test_code_in_a_checkpoint_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "c.pt", danger=Attack())
    with pytest.raises(UserError, match="posix.mkdir"):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert not (tmp_path / "hacked").exists()


def test_a_trusted_file_loads(tmp_path, monkeypatch):
    path = save(tmp_path / "c.pt", own=Anything())
    monkeypatch.setenv(checkpoints.TRUST, "1")
    assert isinstance(checkpoint_utils.load_checkpoint_to_cpu(path)["own"], Anything)


def test_the_check_stays_on_for_everyone_else(tmp_path):
    torch.save(Anything(), tmp_path / "c.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "c.pt")


@pytest.mark.parametrize("keep", [0, 10, 1000, -100], ids=["empty", "10", "1000", "end"])
def test_truncated(tmp_path, keep):
    path = save(tmp_path / "c.pt", weights=torch.zeros(1000))
    data = (tmp_path / "c.pt").read_bytes()
    (tmp_path / "c.pt").write_bytes(data[:keep])
    with pytest.raises(UserError, match="truncated, corrupt or no checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_not_a_checkpoint(tmp_path):
    (tmp_path / "text.pt").write_text("hello world, this is no checkpoint\n" * 9)
    with pytest.raises(UserError, match="truncated, corrupt or no checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "text.pt"))
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="no fairseq checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "weights.pt"))


def test_a_state_is_broadcast_without_trust(monkeypatch):
    """What rank 0 reads reaches the other ranks through torch.save and torch.load."""
    sent = []
    monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 0)
    monkeypatch.setattr(
        distributed_utils, "broadcast", lambda tensor, src, group: sent.append(tensor.clone())
    )
    state = {"cfg": argparse.Namespace(x=1), "w": distributed_utils._TensorPlaceholder(0)}
    distributed_utils._broadcast_object_slow(state, 0, None, torch.device("cpu"))
    monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 1)
    monkeypatch.setattr(
        distributed_utils, "broadcast", lambda tensor, src, group: tensor.copy_(sent.pop(0))
    )
    received = distributed_utils._broadcast_object_slow(None, 0, None, torch.device("cpu"))
    assert received == state
