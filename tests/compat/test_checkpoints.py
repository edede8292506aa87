"""Checkpoints load by an allow-list, and a bad one is named."""

import argparse
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
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
    save(tmp_path / "new.pt", best=numpy.float64(2.5), array=numpy.arange(2))
    with (
        zipfile.ZipFile(tmp_path / "new.pt") as new,
        zipfile.ZipFile(tmp_path / "old.pt", "w") as old,
    ):
        for entry in new.namelist():
            data = new.read(entry)
            if entry.endswith("data.pkl"):
                assert data.count(b"numpy._core.multiarray") >= 2
                data = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            old.writestr(entry, data)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "old.pt"))
    assert state["best"] == 2.5 and state["array"].tolist() == [0, 1]


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


@pytest.mark.parametrize("content", [[1, 2], "text", {"cfg": {"model": None}}])
def test_files_of_torch_that_are_no_checkpoint(tmp_path, content):
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(UserError, match="c.pt"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "c.pt"))


def config_of(path, **model):
    model = {"_name": "transformer_lm", **model}
    return save(path, cfg={"model": model, "task": {"_name": "language_modeling"}})


@pytest.mark.parametrize(
    "model",
    [
        {"character_filters": "__import__('os').system('true') or [(1, 64)]"},
        {"decoder_xformers_att_config": "open('x')"},
        {"adaptive_softmax_cutoff": "[f() for _ in '1']"},
    ],
)
@pytest.mark.parametrize("as_namespace", [False, True])
def test_code_in_a_config_is_refused(tmp_path, model, as_namespace, monkeypatch):
    """Stock fairseq evaluates these strings; the file itself holds safe types alone."""
    path = config_of(tmp_path / "c.pt", **model)
    if as_namespace:
        named = argparse.Namespace(_name="transformer_lm", **model)
        path = save(tmp_path / "c.pt", cfg={"model": named, "task": {}})
    with pytest.raises(UserError, match="has a function call in its model config"):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    monkeypatch.setenv(checkpoints.TRUST, "1")
    checkpoint_utils.load_checkpoint_to_cpu(path)


def test_configs_without_calls_pass(tmp_path):
    path = config_of(
        tmp_path / "c.pt",
        character_filters="[(1, 64), (2, 128)]",
        conv_layers="[(512, 3)] * 20",
        decoder_position="sinusoidal(layout=interleaved)",
        data="data(1)/x",
    )
    checkpoint_utils.load_checkpoint_to_cpu(path)


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(IsADirectoryError):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path))


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


def test_a_copy_that_stops_half_way_leaves_the_checkpoint_that_was_there(tmp_path, monkeypatch):
    source, target = tmp_path / "best.pt", tmp_path / "last.pt"
    source.write_text("new")
    target.write_text("old")

    def stop_half_way(source, target):
        Path(target).write_text("n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", stop_half_way)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_text() == "old"
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_text() == "new"
