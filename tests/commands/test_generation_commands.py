"""Both tasks by fairseq's commands: each generates from what the other trained, the same."""

import argparse
import re

import pytest

import pe_fairseq
from pe_fairseq.evaluation import trained as evaluation
from pe_fairseq.tasks.language_modeling import PeLanguageModelingTask

TASKS = ("pe_language_modeling", "language_modeling")


@pytest.fixture(scope="module")
def trained_under_ours(train, tmp_path_factory):
    """A PermuteFormer of two layers, trained under our task for six updates."""
    folder, log = train(
        tmp_path_factory.mktemp("permuteformer"),
        *("--task", "pe_language_modeling", "--max-target-positions", 64),
        *("--decoder-layers", 2, "--decoder-attention-heads", 2),
        arch="permuteformer_lm",
        position=None,
    )
    assert "'_name': 'pe_language_modeling'" in log
    return folder / "checkpoint_last.pt"


def hypotheses(out):
    """Ids, words and scores of the hypotheses and of their tokens."""
    lines = re.findall(r"^([HP]-\d+)\t(.*)$", out, re.M)
    assert lines
    words = [(key, re.findall(r"(?<!\S)[^-\d]\S*", line)) for key, line in lines]
    numbers = [float(x) for _, line in lines for x in re.findall(r"(?<!\S)-\d[\d.e-]*", line)]
    return words, numbers


def check_equal(outs):
    ours, stock = map(hypotheses, outs)
    assert ours[0] == stock[0]
    assert ours[1] == pytest.approx(stock[1], abs=2e-4)  # token scores have four digits


def test_interactive_writes_the_same_under_both_tasks(fairseq, data, trained_under_ours):
    search = ("--path", trained_under_ours, "--beam", 3, "--nbest", 2, "--max-len-b", 15)
    outs = [
        fairseq(
            "interactive",
            data,
            *("--task", task, *search, "--buffer-size", 3, "--batch-size", 3),
            input="the value of the\nif a class defines one of the methods\na\n",
        ).stdout
        for task in TASKS
    ]
    assert len(re.findall("^H-", outs[0], re.M)) == 6
    assert re.search("^H-1\t-[.0-9]+\tif a class", outs[0], re.M)
    check_equal(outs)


def test_generate_writes_the_same_under_both_tasks(fairseq, data, trained):
    search = ("--sample-break-mode", "eos", "--prefix-size", 3, "--max-len-b", 10)
    check_equal(
        fairseq(
            "generate",
            data,
            *("--task", task, "--path", trained, "--gen-subset", "test", "--beam", 2),
            *("--sampling", "--nbest", 2, "--seed", 5, "--batch-size", 8, *search),
        ).stdout
        for task in TASKS
    )


def test_our_task_evaluates_what_stock_s_trained(fairseq, data, text, trained):
    out = fairseq(
        "eval-lm",
        data,
        *("--task", "pe_language_modeling", "--path", trained, "--max-tokens", 2000),
        *("--tokens-per-sample", 64),
    ).stdout
    words = len((text / "test").read_text().split()) + 60
    assert f"Evaluated {words:,} tokens" in out
    assert 50 < float(re.search(r"Perplexity: ([\d.]+)", out)[1]) < 5000


def test_what_our_task_trained_serves_in_python(data, trained_under_ours):
    model = pe_fairseq.load(trained_under_ours, data=data)
    assert model.task.args._name == "pe_language_modeling"
    assert model.generate("the value", max_tokens=3).startswith("the value")
    about = evaluation.load(trained_under_ours, data).about
    assert about["architecture"] == "permuteformer_lm"


def test_help_says_what_the_limit_counts():
    parser = argparse.ArgumentParser()
    PeLanguageModelingTask.add_args(parser)
    said = " ".join(parser.format_help().split())
    assert "--max-len-b counts the prompt's tokens too" in said
