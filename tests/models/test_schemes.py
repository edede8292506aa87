"""What holds for every registered scheme; a new one joins by being registered."""

import pytest
import torch
from build import (
    LENGTH,
    PAD,
    SMALL,
    SOFTMAX,
    Task,
    build,
    longest,
    pad_left,
    pad_right,
    tokens,
)
from fairseq import checkpoint_utils
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer

from pe_fairseq import positions
from pe_fairseq.attention import one_query
from pe_fairseq.errors import UserError

SUMS = [
    "learned+shaw",
    "learnable-sinusoidal+nezha",
    "rope+t5",
    "rope+shaw",
    "learned2d+permute2d",
    "shaw(clip=3)+alibi",
]
every_scheme = pytest.mark.parametrize("position", [*SOFTMAX, *SUMS])
PREFIX = 6


def logits(model, rows, **kwargs):
    return model(rows, **kwargs)[0]


@every_scheme
def test_no_token_sees_a_later_one(position):
    model, rows = build(decoder_position=position), tokens()
    changed = rows.clone()
    changed[:, PREFIX:] = tokens(seed=9)[:, PREFIX:]
    before, after = logits(model, rows), logits(model, changed)
    assert torch.equal(before[:, :PREFIX], after[:, :PREFIX])
    assert not torch.allclose(before[:, PREFIX:], after[:, PREFIX:], atol=1e-3)


@every_scheme
def test_every_token_sees_all_before_it(position):
    model, rows = build(decoder_position=position), tokens()
    changed = rows.clone()
    changed[:, 0] = 4 + (rows[:, 0] - 3) % 40
    difference = (logits(model, rows) - logits(model, changed)).abs().amax(dim=(0, 2))
    assert (difference > 1e-5).all()


@every_scheme
@pytest.mark.parametrize("pad", [pad_left, pad_right], ids=["left", "right"])
def test_padding_changes_nothing(position, pad):
    model, rows = build(decoder_position=position), tokens()
    padded = logits(model, pad(rows, 3))
    real = padded[:, 3:] if pad is pad_left else padded[:, :-3]
    assert torch.allclose(real, logits(model, rows), atol=1e-5)
    assert padded.isfinite().all()


@every_scheme
def test_rows_of_several_lengths_equal_each_row_alone(position):
    model, rows = build(decoder_position=position), tokens()
    lengths = [20, 13, 1]
    for side in ("left", "right"):
        batch = torch.full_like(rows, PAD)
        for row, length in enumerate(lengths):
            part = slice(20 - length, 20) if side == "left" else slice(0, length)
            batch[row, part] = rows[row, :length]
        together = logits(model, batch)
        for row, length in enumerate(lengths):
            part = slice(20 - length, 20) if side == "left" else slice(0, length)
            alone = logits(model, rows[row : row + 1, :length])[0]
            assert torch.allclose(together[row, part], alone, atol=1e-5), (side, row)


@every_scheme
def test_padding_gets_no_gradient_into_real_tokens(position):
    model, rows = build(decoder_position=position), pad_left(tokens(), 3)
    logits(model, rows)[:, 3:].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert model.decoder.embed_tokens.weight.grad[PAD].abs().max() == 0


@every_scheme
@pytest.mark.parametrize("offset", [1, 5, 65000])
def test_shifted_positions(position, offset):
    """Invariant where the scheme promises it; otherwise they matter, or are refused."""
    rows, scheme = tokens(), positions.parse(position)
    here = logits(build(decoder_position=position), rows)
    shifted = build(decoder_position=position, decoder_position_offset=offset)
    if offset + rows.size(1) > longest(position):
        with pytest.raises(UserError, match=f"position {offset + 19} is beyond the "):
            logits(shifted, rows)
    elif scheme.translation_invariant:
        assert torch.allclose(logits(shifted, rows), here, atol=1e-5)
    else:
        assert not torch.allclose(logits(shifted, rows), here, atol=1e-3)


@every_scheme
def test_stride_spreads_the_same_positions(position):
    """Stride 2 over every other token's place is what the ids say it is."""
    if positions.parse(position).bounded:
        model = build(decoder_position=position, decoder_position_stride=2)
        with pytest.raises(UserError, match="beyond the learned table"):
            logits(model, tokens(length=LENGTH))
        return
    model = build(decoder_position=position, decoder_position_stride=2)
    plain = build(decoder_position=position)
    if plain.decoder.embed_positions is None:
        same = torch.allclose(logits(model, tokens()), logits(plain, tokens()), atol=1e-4)
        assert same == (position == "none")
        return
    asked = []
    model.decoder.embed_positions.register_forward_pre_hook(lambda m, ids: asked.append(ids[0]))
    logits(model, tokens(length=5))
    assert asked[0].tolist() == [[0, 2, 4, 6, 8]]


@every_scheme
@pytest.mark.parametrize("steps", [[1] * 20, [3, 1, 6, 10], [20]], ids=["1", "k", "all"])
@pytest.mark.parametrize("padding", [0, 3], ids=["unpadded", "left-padded"])
@pytest.mark.parametrize("gradient", [False, True], ids=["decoding", "with gradient"])
def test_step_by_step_equals_all_at_once(position, steps, padding, gradient, monkeypatch):
    monkeypatch.setattr(one_query, "STEPS", 4)  # so that tables are outgrown
    model, rows = build(decoder_position=position), pad_left(tokens(), padding)
    full, state, outputs, end = logits(model, rows), {}, [], padding
    for step in steps:
        end += step
        with torch.set_grad_enabled(gradient):
            outputs.append(logits(model, rows[:, :end], incremental_state=state))
    assert outputs[0].size(1) == steps[0] + padding
    together = torch.cat(outputs, dim=1)
    assert torch.allclose(together[:, padding:], full[:, padding:], atol=1e-5)


@every_scheme
@torch.no_grad()
def test_double_precision_decodes(position):
    model, rows, state = build(decoder_position=position).double(), tokens(), {}
    steps = [logits(model, rows[:, :end], incremental_state=state) for end in (18, 19, 20)]
    assert torch.allclose(torch.cat(steps, dim=1), logits(model, rows), atol=1e-5)


@every_scheme
@torch.no_grad()
def test_padding_that_appears_between_steps(position):
    """Rows end at different lengths, then all go on: the gap is no position."""
    model = build(decoder_position=position)
    rows = tokens(batch=2)
    prefix = rows[:, :8].clone()
    prefix[0, 5:] = PAD
    grown, state = torch.cat([prefix, rows[:, 8:10]], dim=1), {}
    logits(model, prefix, incremental_state=state)
    got = logits(model, grown, incremental_state=state)
    alone = torch.cat([rows[:1, :5], rows[:1, 8:10]], dim=1)
    assert torch.allclose(got[0], logits(model, alone)[0, 5:], atol=1e-5)
    assert torch.allclose(got[1], logits(model, grown[1:])[0, 8:], atol=1e-5)


@every_scheme
@torch.no_grad()
def test_beams_are_reordered(position):
    model, rows = build(decoder_position=position), pad_left(tokens(batch=3), 2)
    order = torch.tensor([2, 0, 0])
    state = {}
    for end in (8, 9):
        logits(model, rows[:, :end], incremental_state=state)
    model.decoder.reorder_incremental_state_scripting(state, order)
    grown = torch.cat([rows[order, :9], rows[:, 9:12]], dim=1)
    got = [logits(model, grown[:, :end], incremental_state=state) for end in (10, 12)]
    assert torch.allclose(torch.cat(got, dim=1), logits(model, grown)[:, 9:], atol=1e-5)


@every_scheme
def test_a_prefix_without_new_tokens_is_refused(position):
    model, state = build(decoder_position=position), {}
    logits(model, tokens(), incremental_state=state)
    with pytest.raises(ValueError, match="holds 20 already"):
        logits(model, tokens(), incremental_state=state)


@every_scheme
def test_longer_than_trained(position):
    model, rows = build(decoder_position=position), tokens(length=LENGTH + 1)
    assert model.max_positions() > 10**6
    if positions.parse(position).bounded:
        with pytest.raises(UserError, match=f"position {LENGTH} is beyond the learned table"):
            logits(model, rows)
        state = {}
        logits(model, rows[:, :LENGTH], incremental_state=state)
        with pytest.raises(UserError, match=f"position {LENGTH} is beyond"):
            logits(model, rows, incremental_state=state)
    else:
        assert logits(model, tokens(length=10 * LENGTH)).isfinite().all()


@every_scheme
@pytest.mark.parametrize("rule", ["clamp", "interpolate"])
def test_rules_beyond_a_table(position, rule):
    length = 2 * LENGTH if rule == "interpolate" else None
    options = {"decoder_position_beyond": rule, "decoder_position_length": length}
    if not positions.parse(position).bounded:
        with pytest.raises(UserError, match="has no table"):
            build(decoder_position=position, **options)
        return
    model = build(decoder_position=position, **options)
    assert logits(model, tokens(length=2 * LENGTH)).isfinite().all()
    plain = build(decoder_position=position)
    same = torch.allclose(logits(model, tokens()), logits(plain, tokens()), atol=1e-6)
    assert same == (rule == "clamp")


@every_scheme
def test_left_padding_does_not_use_up_a_table(position):
    model, rows = build(decoder_position=position), tokens()
    padded = logits(model, pad_left(rows, 2 * LENGTH))[:, 2 * LENGTH :]
    assert torch.allclose(padded, logits(model, rows), atol=1e-5)


@every_scheme
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(position, dtype):
    model, rows = build(decoder_position=position), pad_left(tokens(), 2)
    exact = torch.log_softmax(logits(model, rows), dim=-1)[:, 2:]
    half = torch.log_softmax(logits(model.to(dtype), rows).float(), dim=-1)[:, 2:]
    assert half.isfinite().all()
    assert (half - exact).abs().max() < (0.1 if dtype == torch.bfloat16 else 0.02)


@every_scheme
def test_state_dict_round_trip(position):
    model, other = build(decoder_position=position), build(decoder_position=position, seed=2)
    assert not torch.allclose(logits(model, tokens()), logits(other, tokens()), atol=1e-3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(model, tokens()), logits(other, tokens()))


@every_scheme
def test_checkpoint_round_trip(position, tmp_path):
    """Config and weights as the trainer saves them; the file alone rebuilds the model."""
    task = Task()
    task.source_dictionary.save(str(tmp_path / "dict.txt"))
    model = build(decoder_position=position, task=task)
    config = {"_name": "pe_lm", **SMALL, "decoder_position": position}
    state = {
        "args": None,
        "cfg": {
            "model": config,
            "task": {"_name": "language_modeling", "data": str(tmp_path)},
        },
        "model": model.state_dict(),
        "optimizer_history": [
            {"num_updates": 1, "optimizer_name": "", "lr_scheduler_state": {}}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, tmp_path / "checkpoint.pt")
    path = str(tmp_path / "checkpoint.pt")
    (loaded,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task([path])
    assert cfg.model.decoder_position == position
    assert torch.equal(logits(loaded.eval(), tokens()), logits(model, tokens()))


@every_scheme
def test_checkpointed_activations(position):
    plain = build(decoder_position=position, dropout=0.1, attention_dropout=0.1)
    saving = build(
        decoder_position=position,
        dropout=0.1,
        attention_dropout=0.1,
        checkpoint_activations=True,
    )
    assert all(hasattr(layer, "precheckpoint_forward") for layer in saving.decoder.layers)
    gradients = []
    for model in (plain, saving):
        model.train()
        torch.manual_seed(0)
        logits(model, pad_left(tokens(), 2))[:, 2:].logsumexp(-1).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients):
        assert torch.allclose(a, b, atol=1e-5)


@every_scheme
def test_layer_drop_leaves_no_layer_without_positions(position):
    dropping = {"decoder_layers": 6, "decoder_layerdrop": 0.5}
    model = build(decoder_position=position, **dropping)
    plain = build(decoder_position=position, decoder_layers=6)
    assert torch.equal(logits(model, tokens()), logits(plain, tokens()))


@every_scheme
def test_made_fast_for_generation(position):
    model, rows = build(decoder_position=position), tokens()
    expected = logits(model, rows)
    model.make_generation_fast_(beamable_mm_beam_size=5, need_attn=False)
    assert torch.equal(logits(model, rows), expected)


@every_scheme
def test_two_models_average_their_probabilities(position):
    task = Task()
    pair = [build(decoder_position=position, seed=seed, task=task) for seed in (1, 2)]
    rows = tokens()
    sample = {
        "net_input": {"src_tokens": rows[:, :-1]},
        "target": rows[:, 1:],
        "id": torch.arange(len(rows)),
    }
    hypotheses = SequenceScorer(task.target_dictionary).generate(pair, sample)
    probs = sum(torch.softmax(logits(m, rows[:, :-1]), dim=-1) for m in pair) / 2
    expected = probs.gather(2, rows[:, 1:, None]).squeeze(2).log()
    for row, hypothesis in enumerate(hypotheses):
        got = hypothesis[0]["positional_scores"]
        assert torch.allclose(got, expected[row], atol=1e-5)


@every_scheme
def test_beam_search_scores_are_those_of_a_full_pass(position):
    task = Task()
    model = build(decoder_position=position, task=task)
    generator = SequenceGenerator(
        EnsembleModel([model]), task.target_dictionary, beam_size=4, max_len_b=12
    )
    rows = tokens(batch=2, length=5)
    sample = {"net_input": {"src_tokens": rows}, "id": torch.arange(2)}
    for hypotheses in generator.generate([model], sample, prefix_tokens=rows):
        for hypothesis in hypotheses:
            written = hypothesis["tokens"]
            start = written.new_tensor([task.target_dictionary.eos()])
            full = torch.log_softmax(
                logits(model, torch.cat([start, written[:-1]])[None])[0], dim=-1
            )
            expected = full.gather(1, written[:, None]).squeeze(1)
            assert torch.allclose(hypothesis["positional_scores"], expected, atol=1e-4)


def test_shared_parameters_start_bit_equal():
    """Two models that differ in their scheme alone have the same start."""
    states, after = {}, []
    for name in SOFTMAX:
        states[name] = build(decoder_position=name).state_dict()
        after.append(torch.rand(1))
    assert all(torch.equal(value, after[0]) for value in after)
    shared = set.intersection(*(set(state) for state in states.values()))
    assert len(shared) > 20
    for name in shared:
        values = [state[name] for state in states.values()]
        assert all(torch.equal(value, values[0]) for value in values), name


@pytest.mark.parametrize("attention_dropout", [0, 0.3])
def test_shared_parameters_drop_out_alike(attention_dropout):
    """The position module takes nothing from the global random generator.

    Blocked attention takes one number for all its weights, torch's dropout one a weight.
    """
    after = {}
    for name in SOFTMAX:
        options = {"dropout": 0.3, "attention_dropout": attention_dropout}
        model = build(decoder_position=name, **options).train()
        torch.manual_seed(0)
        logits(model, tokens())
        blocked = attention_dropout and positions.parse(name).needs_scores
        after.setdefault(bool(blocked), []).append(torch.rand(1))
    assert len(after) == (2 if attention_dropout else 1)
    for values in after.values():
        assert len(values) > 3 and all(torch.equal(value, values[0]) for value in values)


def test_position_parameters_follow_the_seed():
    tables = [
        build(decoder_position="learned", seed=s).decoder.embed_positions for s in (1, 1, 2)
    ]
    assert torch.equal(tables[0].weight, tables[1].weight)
    assert not torch.equal(tables[0].weight, tables[2].weight)
