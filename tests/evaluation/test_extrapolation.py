"""eval_extrapolation.py against eval-lm, against one pass a token, and its refusals."""

import json
import lzma
import math
import shutil

import pytest
import torch
from fairseq import checkpoint_utils

from pe_fairseq.corpus.manifest import Manifest, Split
from pe_fairseq.errors import UserError
from pe_fairseq.evaluation import extrapolation, results, scoring, text, trained, windows


def measure(checkpoint, data, path, *arguments):
    """Run the command; returns the results that it has written."""
    extrapolation.main([str(checkpoint), str(data), "--results-path", str(path), *arguments])
    return results.read(path)


def write_manifest(folder, documents, words=1000):
    split = Split(words, sum(documents), documents, sha256="")
    Manifest("test", [], None, {}, {"test": split}).write(folder)


@pytest.fixture
def documented(data, tmp_path):
    """The data with a manifest: three documents of 60 lines and 1000 words in all."""
    folder = tmp_path / "documented"
    shutil.copytree(data, folder)
    write_manifest(folder, [13, 1, 46])
    return folder


@pytest.mark.parametrize(("length", "context"), [(48, 0), (96, 40)])
def test_it_agrees_with_eval_lm(trained, data, fairseq, tmp_path, length, context):
    mode = ("--stride", str(length - context)) if context else ("--mode", "blocks")
    [result] = measure(
        trained, data, tmp_path / "r", "--lengths", str(length), "--max-tokens", "500", *mode
    )
    out = fairseq(
        *("eval-lm", data, "--path", trained, "--max-tokens", 2000),
        *("--tokens-per-sample", length, "--context-window", context),
    ).stdout
    printed = float(out.split("Loss (base 2): ")[1].split(",")[0])
    assert result["nats"] / result["tokens"] / math.log(2) == pytest.approx(printed, abs=1e-4)
    assert f"Evaluated {result['tokens']:,} tokens" in out


def test_it_agrees_with_eval_lm_with_an_adaptive_softmax(train, data, fairseq, tmp_path):
    folder, _ = train(
        tmp_path / "adaptive",
        *("--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "50,200"),
        *("--ddp-backend", "legacy_ddp"),
    )
    checkpoint = folder / "checkpoint_last.pt"
    [result] = measure(checkpoint, data, tmp_path / "r", "--lengths", "64")
    out = fairseq(
        *("eval-lm", data, "--path", checkpoint, "--max-tokens", 2000),
        *("--tokens-per-sample", 64, "--context-window", 32),
    ).stdout
    printed = float(out.split("Loss (base 2): ")[1].split(",")[0])
    assert result["nats"] / result["tokens"] / math.log(2) == pytest.approx(printed, abs=1e-4)


def loss_one_by_one(model, tokens, documents, length, stride, eos):
    """Each target's loss in nats from a pass of its own over its context, in float64."""
    losses = []
    begin = 0
    for count in documents:
        for target in range(begin, begin + count):
            block_end = begin + ((target - begin) // stride + 1) * stride
            start = max(begin, block_end - length)
            before = [eos if start == 0 else tokens[start - 1].item()]
            row = torch.tensor([before + tokens[start:target].tolist()])
            output = model(row)[0][0, -1].double()
            losses.append(-output.log_softmax(dim=0)[tokens[target]].item())
        begin += count
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize(("length", "stride"), [(16, 8), (16, 5), (100, 100), (24, 1)])
def test_every_loss_equals_a_pass_of_its_own(trained, documented, length, stride):
    loaded = load(trained, documented)
    source = text.read(documented, "test", loaded.task.source_dictionary)
    tokens = source.tokens[:230]
    documents = [120, 17, 93]
    eos = loaded.task.source_dictionary.eos()
    plan = windows.plan(documents, length, stride)
    found = scoring.score(
        loaded.model,
        tokens,
        plan,
        length,
        first_input=eos,
        pad=loaded.task.source_dictionary.pad(),
        max_tokens=130,
    )
    expected = loss_one_by_one(loaded.model, tokens, documents, length, stride, eos)
    assert (found.of_token - expected).abs().max() < 1e-4

    blocks = [
        begin + block
        for begin, count in ((0, 120), (120, 17), (137, 93))
        for block in range(0, count - length + 1, length)
    ]
    if stride == length and blocks:
        rows = torch.stack([expected[block : block + length] for block in blocks])
        assert (found.of_position - rows.mean(dim=0)).abs().max() < 1e-4
        assert found.disjoint == len(blocks)


def load(checkpoint, data, **options):
    return trained.load(checkpoint, data, **options)


def test_documents_and_words(trained, documented, data, tmp_path):
    [whole] = measure(trained, data, tmp_path / "whole", "--lengths", "64")
    [apart] = measure(trained, documented, tmp_path / "apart", "--lengths", "64")
    assert whole["tokens"] == apart["tokens"]
    assert whole["nats"] != apart["nats"]
    assert whole["perplexity_per_word"] is None
    words = 1000 + 60
    assert apart["words_and_lines"] == words
    assert apart["perplexity_per_word"] == pytest.approx(math.exp(apart["nats"] / words))
    write_manifest(documented, [13, 2, 45], words=500)
    other = measure(trained, documented, tmp_path / "apart", "--lengths", "64")[-1]
    assert other["words_and_lines"] == 560 and other["nats"] != apart["nats"], (
        "an old result is not taken"
    )


def test_the_same_tokens_at_every_length(trained, documented, tmp_path):
    lines = measure(trained, documented, tmp_path / "r", "--lengths", "16,64,512")
    assert len({line["tokens"] for line in lines}) == 1
    assert [line["signature"]["window"] for line in lines] == [16, 64, 512]
    assert [line["signature"]["stride"] for line in lines] == [8, 32, 256]
    full = [line["tokens_in_full_windows"] for line in lines]
    assert full == sorted(full, reverse=True) and full[0] > full[2]


def test_wikitext_words(wikitext2):
    """What the WikiText test perplexities of the literature divide by."""
    with lzma.open(wikitext2 / "wiki.test.tokens.xz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    split = Split(sum(len(line.split()) for line in lines), len(lines), [len(lines)], "")
    assert split.scored_words == 245_569


def test_learned_is_undefined_beyond_its_table(trained_learned, data, tmp_path, capsys):
    path = tmp_path / "r"
    inside, beyond = measure(trained_learned, data, path, "--lengths", "64,65")
    assert "undefined" not in inside and inside["perplexity_per_token"] > 1
    assert "position 64 is beyond" in beyond["undefined"] and "nats" not in beyond
    assert "undefined" in capsys.readouterr().out
    clamped = measure(
        *(trained_learned, data, path, "--lengths", "65"),
        *("--model-overrides", "{'decoder_position_beyond': 'clamp'}"),
    )[-1]
    assert clamped["perplexity_per_token"] > 1
    assert clamped["signature"]["overrides"] == {"decoder_position_beyond": "clamp"}


def test_a_stock_checkpoint(stock_checkpoint, data, tmp_path):
    lines = measure(stock_checkpoint, data, tmp_path / "r", "--lengths", "64,65")
    assert lines[0]["signature"]["scheme"] == "sinusoidal"
    assert "nats" in lines[0] and "64 positions" in lines[1]["undefined"]


def test_a_result_is_not_measured_twice(trained, data, tmp_path, monkeypatch):
    path = tmp_path / "r"
    before = measure(trained, data, path, "--lengths", "16,32")
    monkeypatch.setattr(scoring, "score", None)
    assert measure(trained, data, path, "--lengths", "16,32") == before


def test_a_result_begins_a_line_of_its_own(trained, data, tmp_path):
    path = tmp_path / "r"
    measure(trained, data, path, "--lengths", "16")
    path.write_text(path.read_text().rstrip("\n"))
    assert len(measure(trained, data, path, "--lengths", "16,32")) == 2


def test_the_signature_names_what_made_the_number(trained, data, tmp_path):
    [result] = measure(trained, data, tmp_path / "r", "--lengths", "16")
    signature = result["signature"]
    assert signature["scheme"] == "sinusoidal" and signature["train_length"] == 64
    assert signature["seed"] == 7 and signature["updates"] == 6
    assert signature["precision"] == "float32"
    for sha256 in (signature["checkpoint"], signature["data"]["sha256"]):
        assert len(sha256) == 64
    assert set(signature["versions"]) == {"pe-fairseq", "fairseq", "torch", "numpy"}
    [line] = (tmp_path / "r").read_text().splitlines()
    assert json.loads(line) == result
    assert f"checkpoint:{signature['checkpoint'][:8]} " in results.short(signature)


def test_a_loss_that_is_not_finite_is_an_error(trained, data):
    loaded = load(trained, data)
    with torch.no_grad():
        loaded.model.decoder.layers[0].fc1.weight[0, 0] = float("nan")
    source = text.read(data, "test", loaded.task.source_dictionary)
    with pytest.raises(UserError, match="no finite loss"):
        scoring.score(
            *(loaded.model, source.tokens[:40], windows.plan([40], 16, 8), 16),
            first_input=2,
            pad=1,
            max_tokens=64,
        )


def test_memory_is_bounded(trained, data, monkeypatch):
    loaded = load(trained, data)
    source = text.read(data, "test", loaded.task.source_dictionary)
    passes, scores = [], []
    decoder = loaded.model.decoder
    extract, output = decoder.extract_features, decoder.output_layer
    decoder.extract_features = lambda rows, **kw: (
        passes.append(len(rows)) or extract(rows, **kw)
    )
    decoder.output_layer = lambda x: scores.append(x.size(1)) or output(x)
    monkeypatch.setattr(scoring, "MAX_SCORES", 10 * len(loaded.task.source_dictionary))
    scoring.score(
        *(loaded.model, source.tokens, windows.plan(source.documents, 16, 8), 16),
        first_input=2,
        pad=1,
        max_tokens=100,
    )
    assert max(passes) == 100 // 16 and max(scores) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "16,x"], "whole numbers"),
        (["--lengths", "0"], "must be 1 or more"),
        (["--lengths", "16", "--stride", "17"], "stride 17"),
        (["--mode", "blocks", "--stride", "4"], "--stride"),
        (["--gen-subset", "nowhere"], "nowhere"),
        (["--model-overrides", "{'decoder_positoin_stride': 2}"], "decoder_position_stride"),
        (["--model-overrides", "{'tokens_per_sample': 8, 'seed': 2}"], "takes no"),
        (["--lengths", "1000000000000"], "too long"),
    ],
)
def test_bad_arguments(trained, data, capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        extrapolation.main([str(trained), str(data), *arguments])
    said = f"{error.value.code}{capsys.readouterr().err}"
    assert message in said and "Traceback" not in said


def test_bad_files(trained, data, documented, tmp_path):
    for checkpoint, folder, message in (
        (tmp_path / "none.pt", data, "no checkpoint"),
        (trained, tmp_path, "dict.txt"),
    ):
        with pytest.raises(UserError, match=message):
            load(checkpoint, folder)
    write_manifest(documented, [13, 46])
    dictionary = checkpoint_utils.load_model_ensemble_and_task([str(trained)])[2].dictionary
    with pytest.raises(UserError, match="does not describe test.bin"):
        text.read(documented, "test", dictionary)
    write_manifest(documented, [13, 1, 46])
    shutil.copy(data / "valid.bin", documented / "test.bin")
    shutil.copy(data / "valid.idx", documented / "test.idx")
    with pytest.raises(UserError, match="does not describe test.bin"):
        text.read(documented, "test", dictionary)
    (documented / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="no manifest"):
        text.read(documented, "test", dictionary)
    with pytest.raises(OSError):
        results.Results(trained / "below_a_file.jsonl")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"signature": {"measure": "extrapolation"}}\n{"signa')
    with pytest.raises(UserError, match="line 2"):
        results.read(broken)
