"""A trained model in Python."""

import math

import pytest
import torch

import pe_fairseq
from pe_fairseq.errors import UserError

TEXT = "the value of an expression is an object"


@pytest.fixture(scope="module")
def model(trained, data):
    return pe_fairseq.load(trained, data=data)


def test_score_is_the_sum_of_next_tokens(model):
    score = model.score(TEXT)
    assert score.tokens[-1] == "</s>" and len(score.tokens) == 9
    probabilities = dict(model.next_token("the value of", top=10**6))
    index = 3
    assert score.log_probs[index].exp().item() == pytest.approx(
        probabilities[score.tokens[index]], rel=1e-4
    )
    assert score.perplexity == pytest.approx(math.exp(-score.log_probs.mean().item()))


def test_next_token_probabilities(model):
    best = model.next_token("the", top=5)
    assert len(best) == 5
    assert [p for _, p in best] == sorted((p for _, p in best), reverse=True)
    everything = model.next_token("", top=10**6)
    assert sum(p for _, p in everything) == pytest.approx(1, abs=1e-4)


def test_generate_continues_the_text(model):
    torch.manual_seed(1)
    text = model.generate("the value", max_tokens=5, sampling=True)
    assert text.startswith("the value ")
    assert len(text.split()) <= 7
    assert model.generate("the value", max_tokens=5) == model.generate(
        "the value", max_tokens=5
    )


def test_it_agrees_with_eval_lm(model, trained, data, fairseq, text):
    out = fairseq(
        "eval-lm",
        data,
        *("--path", trained, "--sample-break-mode", "eos", "--max-tokens", 4000),
    ).stdout
    printed = float(out.split("Loss (base 2): ")[1].split(",")[0])
    lines = (text / "test").read_text().splitlines()
    scores = torch.cat([model.score(line).log_probs for line in lines])
    assert -scores.mean().item() / math.log(2) == pytest.approx(printed, abs=1e-3)


def test_two_models_are_averaged(model, trained, trained_learned, data):
    both = pe_fairseq.load(f"{trained}:{trained_learned}", data=data)
    other = pe_fairseq.load(trained_learned, data=data)
    mean = (model.score(TEXT).log_probs.exp() + other.score(TEXT).log_probs.exp()) / 2
    assert torch.allclose(both.score(TEXT).log_probs.exp(), mean, atol=1e-6)


def test_the_training_data_s_folder_is_the_default(trained):
    assert pe_fairseq.load(trained).score(TEXT).tokens[-1] == "</s>"


def test_overrides(model, trained, data):
    changed = pe_fairseq.load(trained, data=data, overrides={"decoder_position_stride": 3})
    assert not torch.allclose(changed.score(TEXT).log_probs, model.score(TEXT).log_probs)
    with pytest.raises(UserError, match="decoder_position_strid"):
        pe_fairseq.load(trained, data=data, overrides={"decoder_position_strid": 3})


def test_a_model_that_starts_with_another_symbol(train, fairseq, data, text, tmp_path):
    """--add-bos-token: score starts from <s>, as eval-lm does."""
    train(tmp_path, "--add-bos-token", "--max-update", 2)
    path = tmp_path / "checkpoint_last.pt"
    options = ("--path", path, "--sample-break-mode", "eos", "--max-tokens", 4000)
    out = fairseq("eval-lm", data, "--add-bos-token", *options).stdout
    printed = float(out.split("Loss (base 2): ")[1].split(",")[0])
    model = pe_fairseq.load(path, data=data)
    lines = (text / "test").read_text().splitlines()
    scores = torch.cat([model.score(line).log_probs for line in lines])
    assert -scores.mean().item() / math.log(2) == pytest.approx(printed, abs=1e-3)
    refused = fairseq("eval-lm", data, *options, check=False)
    assert refused.returncode == 1 and "was trained with --add-bos-token" in refused.stdout


def test_bad_input(model, trained, trained_learned, data, tmp_path):
    for empty in ("", "  \n "):
        with pytest.raises(UserError, match="holds no token"):
            model.score(empty)
    with pytest.raises(UserError, match="there is no checkpoint"):
        pe_fairseq.load(tmp_path / "none.pt")
    with pytest.raises(UserError, match="no dict.txt"):
        pe_fairseq.load(trained, data=tmp_path)
    for options in ({"bem": 3}, {"beam": 0}, {"max_tokens": 0}):
        with pytest.raises(UserError, match="did you mean 'beam'|must be 1 or more"):
            model.generate("the", **options)
    with pytest.raises(UserError, match="top=0 must be 1 or more"):
        model.next_token("the", top=0)
    with pytest.raises(UserError, match="overrides takes a dict"):
        pe_fairseq.load(trained, data=data, overrides="{}")
    long = " ".join(["the"] * 100)
    assert len(model.score(long).tokens) == 101
    with pytest.raises(UserError, match="beyond the learned table, which has 64"):
        pe_fairseq.load(trained_learned, data=data).score(long)
