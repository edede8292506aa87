"""Stock checkpoints, trained by stock fairseq, score the same as ours."""

import argparse

import pytest
import torch
from build import pad_left, tokens
from fairseq import checkpoint_utils

from pe_fairseq.errors import UserError
from pe_fairseq.models import stock


def load(path, **overrides):
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides=overrides
    )
    return models[0].eval(), cfg, task


def log_probs(model, rows, **kwargs):
    return model.get_normalized_probs(model(rows, **kwargs), log_probs=True)


def check_scores(stock_model, ours):
    rows = tokens(length=40)
    expected = log_probs(stock_model, rows)
    assert (log_probs(ours, rows) - expected).abs().max() < 1e-5
    mine, theirs = {}, {}
    for n in range(1, 12):
        a = log_probs(ours, rows[:, :n], incremental_state=mine)
        b = log_probs(stock_model, rows[:, :n], incremental_state=theirs)
        assert (a - b).abs().max() < 1e-5

    # stock gives NaN here; ours must equal its own full pass
    padded, state, outputs = pad_left(rows, 3), {}, []
    for n in range(4, 15):
        outputs.append(log_probs(ours, padded[:, :n], incremental_state=state)[:, -1])
    full = log_probs(ours, padded)
    assert (torch.stack(outputs, dim=1) - full[:, 3:14]).abs().max() < 1e-5


def test_a_converted_checkpoint(stock_checkpoint, tmp_path):
    target = tmp_path / "ours.pt"
    assert stock.convert(stock_checkpoint, target) == "sinusoidal"
    theirs, _, _ = load(stock_checkpoint)
    ours, cfg, _ = load(target)
    assert type(ours).__name__ == "pe_lm" and type(theirs).__name__ != "pe_lm"
    assert cfg.model.decoder_normalize_before is False  # kept: the bare name is post-norm
    check_scores(theirs, ours)
    a, b = (torch.load(path, weights_only=False) for path in (stock_checkpoint, target))
    assert (
        a["last_optimizer_state"]["state"].keys() == b["last_optimizer_state"]["state"].keys()
    )
    assert not list(tmp_path.glob("*.partial"))


def test_an_old_checkpoint_that_holds_a_namespace(stock_checkpoint, tmp_path):
    """The form of the checkpoints that fairseq's authors released: flat args, no cfg."""
    state = torch.load(stock_checkpoint)
    whole = state.pop("cfg")
    flat = {}
    for part in whole.values():
        if isinstance(part, dict):
            flat.update({key: value for key, value in part.items() if key != "_name"})
    flat.update(arch="transformer_lm", task="language_modeling", lr=[0.1])
    for name in ("criterion", "optimizer", "lr_scheduler"):
        flat[name] = whole[name]["_name"]
    state["args"] = argparse.Namespace(**flat)
    torch.save(state, tmp_path / "old.pt")
    stock.convert(tmp_path / "old.pt", tmp_path / "ours.pt")
    theirs, _, _ = load(stock_checkpoint)
    for ours, _, _ in (
        load(tmp_path / "ours.pt"),
        load(tmp_path / "old.pt", model={"_name": "pe_lm"}),
    ):
        assert type(ours).__name__ == "pe_lm"
        check_scores(theirs, ours)


def test_by_model_overrides(stock_checkpoint):
    theirs, _, _ = load(stock_checkpoint)
    ours, _, _ = load(
        stock_checkpoint, model={"_name": "pe_lm", "decoder_position": "sinusoidal"}
    )
    assert type(ours).__name__ == "pe_lm"
    check_scores(theirs, ours)


def test_nothing_is_overwritten(stock_checkpoint, tmp_path):
    target = tmp_path / "there.pt"
    target.write_text("mine")
    with pytest.raises(UserError, match="does not overwrite"):
        stock.convert(stock_checkpoint, target)
    assert target.read_text() == "mine"


def test_what_is_no_stock_model(trained, tmp_path):
    with pytest.raises(UserError, match="is a 'pe_lm_tiny' model, not a stock"):
        stock.convert(trained, tmp_path / "x.pt")


def test_a_stock_run_continues_as_ours(stock_checkpoint, train, tmp_path):
    """Weights, optimizer and place in the data go on, under our model."""
    sizes = ("--decoder-layers", 2, "--decoder-attention-heads", 4)
    flat = ("--decoder-input-dim", 32, "--decoder-output-dim", 32)
    _, log = train(
        tmp_path,
        *sizes,
        *flat,
        *("--restore-file", stock_checkpoint, "--max-update", 8),
        "--no-decoder-normalize-before",
        arch="pe_lm",
    )
    assert "Loaded checkpoint" in log and "@ 6 updates" in log
    assert "num_updates 8" in log
