"""Prompts read in one pass: what stock's search writes, at constant memory per token."""

from argparse import Namespace

import pytest
import torch
from build import LENGTH, PAD, Task, build, build_stock, pad_left, tokens
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.language_modeling import LanguageModelingTask

from pe_fairseq.tasks import prefill
from pe_fairseq.tasks.language_modeling import PeLanguageModelingTask

DICTIONARY = Task().source_dictionary
EOS, BOS = DICTIONARY.eos(), DICTIONARY.bos()

MODELS = {
    "softmax": {"decoder_position": "sinusoidal"},
    "softmax-biases": {"decoder_position": "rope+t5"},
    "softmax-vectors": {"decoder_position": "shaw"},
    "performer": {"decoder_attention": "performer", "decoder_position": "rope"},
    "permute": {"decoder_attention": "performer", "decoder_position": "permute"},
    "favor": {
        "decoder_attention": "performer(features=favor)",
        "decoder_position": "sinusoidal",
    },
}
SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "lengths": {"beam": 3, "lenpen": 0.3, "min_len": 13, "unkpen": 0.4},
    "unnormalised": {"beam": 3, "unnormalized": True, "max_len_a": 1, "max_len_b": 3},
    "n-grams": {"beam": 3, "no_repeat_ngram_size": 2},
    "sampling": {"beam": 3, "sampling": True, "temperature": 1.3},
    "top-k": {"beam": 3, "sampling": True, "sampling_topk": 5},
    "top-p": {"beam": 3, "sampling": True, "sampling_topp": 0.7, "temperature": 0.5},
    "groups": {"beam": 4, "diverse_beam_groups": 2},
    "siblings": {"beam": 3, "diversity_rate": 0.3},
    "source length": {"beam": 3, "match_source_len": True},
}


def prompts(*lengths):
    """What fairseq makes of prompts: ``</s>`` in front, padding behind."""
    rows = tokens(len(lengths), max(lengths))
    for row, length in zip(rows, lengths):
        row[length:] = PAD
    return torch.nn.functional.pad(rows, (1, 0), value=EOS)


def generate(task, models, source, prefix=None, **search):
    """Hypotheses of each sentence, by a task's own generator and inference step."""
    options = {"max_len_b": 18, **search}
    task = task(Namespace(add_bos_token=options.pop("add_bos_token", False)), DICTIONARY)
    generator = task.build_generator(models, Namespace(**options))
    lengths = source.ne(PAD).sum(1)
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
    torch.manual_seed(3)
    return task.inference_step(generator, models, sample, prefix_tokens=prefix)


def check_equal(models, source, **options):
    """Both tasks write the same; returns what they wrote."""
    ours = generate(PeLanguageModelingTask, models, source, **options)
    stock = generate(LanguageModelingTask, models, source, **options)
    for mine, theirs in zip(ours, stock, strict=True):
        assert [h["tokens"].tolist() for h in mine] == [h["tokens"].tolist() for h in theirs]
        for name in ("score", "positional_scores"):
            for a, b in zip(mine, theirs):
                assert torch.allclose(a[name], b[name], atol=1e-5), name
    return ours


@pytest.fixture
def reads(monkeypatch):
    """The shape of the tokens at every call of our decoder."""
    shapes = []
    read = prefill.PositionDecoder.extract_features

    def recorded(self, prev_output_tokens, *args, **kwargs):
        shapes.append(tuple(prev_output_tokens.shape))
        return read(self, prev_output_tokens, *args, **kwargs)

    monkeypatch.setattr(prefill.PositionDecoder, "extract_features", recorded)
    return shapes


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_hypotheses_and_scores_are_those_of_stock(model, search):
    models = [build(**model)]
    check_equal(models, prompts(10), **search)
    check_equal(models, prompts(4, 10, 7), **search)


@pytest.mark.parametrize("search", ["beam", "lengths", "sampling"])
def test_models_together_are_those_of_stock(search):
    models = [build(**MODELS["permute"]), build(seed=2, **MODELS["softmax"])]
    check_equal(models, prompts(4, 10, 7), **{"temperature": 0.8, **SEARCHES[search]})


def test_an_adaptive_softmax_is_that_of_stock():
    models = [build(adaptive_softmax_cutoff="10,20")]
    check_equal(models, prompts(9, 6), beam=3, temperature=0.8)


def with_eos():
    source = prompts(10, 10, 10)
    source[1, 4] = EOS  # the sentence is finished there, the others go on
    return source


@pytest.mark.parametrize("search", ["beam", "n-grams", "sampling"])
@pytest.mark.parametrize(
    ("source", "options"),
    [
        (with_eos(), {}),
        (prompts(10, 6)[:, 1:], {}),
        (prompts(10, 6), {"prefix": prompts(10, 6)[:, 1:4]}),
        (prompts(10), {"prefix": pad_left(prompts(6)[:, 1:], 2)}),
        (torch.full((2, 1), EOS), {}),
        (
            prompts(10, 6).where(prompts(10, 6) != EOS, torch.tensor(BOS)),
            {"add_bos_token": True},
        ),
        (torch.cat([prompts(8), torch.tensor([[EOS] + [PAD] * 8])]), {}),
    ],
    ids=["eos", "no start", "prefix", "late", "empty", "bos", "one empty"],
)
def test_starts_of_every_kind_are_those_of_stock(source, options, search):
    check_equal([build(**MODELS["permute"])], source, **options, **SEARCHES[search])


def test_a_prompt_is_cut_where_stock_cuts_it(reads):
    models = [build(decoder_position="learned")]
    written = check_equal(models, prompts(2 * LENGTH), beam=2, max_len_b=LENGTH - 2)
    assert len(written[0][0]["tokens"]) == LENGTH - 1
    assert reads[0] == (1, LENGTH - 1)
    of_source = {"beam": 2, "match_source_len": True, "prefix": prompts(12)[:, 1:]}
    check_equal(models, prompts(6), **of_source)
    assert (1, 8) in reads


@pytest.mark.parametrize(
    ("lengths", "at_once"), [((10, 10), 11), ((10, 6, 8), 7)], ids=["equal", "unequal"]
)
def test_a_prompt_is_one_pass_per_sentence(reads, lengths, at_once):
    source, beam = prompts(*lengths), 3
    search = {"beam": beam, "min_len": 18, "max_len_b": 18}
    generate(PeLanguageModelingTask, [build(**MODELS["permute"])], source, **search)
    steps = [(beam * len(lengths), length) for length in range(at_once + 1, 20)]
    assert reads == [(len(lengths), at_once), *steps]


def test_scores_of_a_prompt_do_not_depend_on_how_many_are_held_at_once(monkeypatch):
    models, source = [build(**MODELS["permute"])], prompts(10, 10)
    for largest in (1, 2 * 3 * len(DICTIONARY)):
        monkeypatch.setattr(prefill, "LARGEST_BLOCK", largest)
        check_equal(models, source, beam=3)


def test_a_stock_model_reads_token_by_token():
    check_equal([build_stock()], prompts(10, 6), beam=3)
    check_equal([build_stock(), build(**MODELS["permute"])], prompts(10, 6), beam=3)


def test_a_prompt_is_forgotten_after_its_batch():
    models, ends = [build()], prompts(8)
    ends[0, 4] = EOS  # finished within the prompt
    task = PeLanguageModelingTask(Namespace(), DICTIONARY)
    generator = task.build_generator(models, Namespace(beam=2, max_len_b=12))
    task.inference_step(generator, models, {"net_input": {"src_tokens": ends}})
    sample = {"net_input": {"src_tokens": prompts(6)}}
    expected = SequenceGenerator(models, DICTIONARY, beam_size=2, max_len_b=12)
    for mine, theirs in zip(generator(sample)[0], expected(sample)[0], strict=True):
        assert mine["tokens"].tolist() == theirs["tokens"].tolist()


def held_elements(state):
    """How many numbers an incremental state holds."""
    if isinstance(state, torch.Tensor):
        return state.numel()
    parts = state.values() if isinstance(state, dict) else state
    return sum(map(held_elements, parts)) if isinstance(state, (dict, tuple, list)) else 0


def test_the_state_of_4096_tokens_is_no_larger_than_that_of_16(monkeypatch):
    model, elements = build("permuteformer_lm", decoder_layers=1), {}
    read = model.decoder.extract_features

    def recorded(prev_output_tokens, *args, incremental_state, **kwargs):
        result = read(prev_output_tokens, *args, incremental_state=incremental_state, **kwargs)
        elements[prev_output_tokens.size(1)] = held_elements(incremental_state)
        return result

    monkeypatch.setattr(model.decoder, "extract_features", recorded)
    [[hypothesis]] = generate(
        PeLanguageModelingTask, [model], prompts(8), beam=1, min_len=4096, max_len_b=4096
    )
    assert len(hypothesis["tokens"]) == 4097
    assert hypothesis["positional_scores"].isfinite().all()
    assert elements[4096] == elements[16] > 16 * 8


@pytest.mark.parametrize("attention", ["performer", "performer(features=favor)"])
def test_after_16384_tokens_it_decodes_what_a_whole_pass_gives(attention):
    model = build("permuteformer_lm", decoder_layers=1, decoder_attention=attention)
    rows, state, prompt = tokens(1, 16384 + 8), {}, 16384
    with torch.no_grad():
        whole = model(rows)[0][:, prompt - 1 :]
        steps = [
            model(rows[:, :end], incremental_state=state)[0][:, -1:]
            for end in range(prompt, rows.size(1) + 1)
        ]
    assert torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-5)
