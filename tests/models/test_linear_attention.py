"""What holds in a model for every feature map with every scheme that linear attention takes."""

from types import SimpleNamespace

import pytest
import torch
from build import LINEAR, PAD, Task, build, longest, pad_left, pad_right, tokens
from fairseq.sequence_generator import SequenceGenerator

from pe_fairseq import positions
from pe_fairseq.errors import UserError
from pe_fairseq.models import stock

FEATURES = ["relu", "elu", "favor", "favor-relu"]
SPECS = [
    *(f"performer(features={name})" for name in FEATURES),
    "performer(normalize=false)",
    "performer(width=3)",
]
POSITIONS = [
    *LINEAR,
    "permute(decay=false)",
    "permute(permutation=false)",
    "sinusoidal+permute",
]
PREFIX = 6

every = pytest.mark.parametrize("position", POSITIONS)
each = pytest.mark.parametrize("attention", SPECS)


def model_of(attention, position, **options):
    return build(decoder_attention=attention, decoder_position=position, **options)


def logits(model, rows, **kwargs):
    return model(rows, **kwargs)[0]


@every
@each
def test_no_token_sees_a_later_one(attention, position):
    model, rows = model_of(attention, position), tokens()
    changed = rows.clone()
    changed[:, PREFIX:] = tokens(seed=9)[:, PREFIX:]
    before, after = logits(model, rows), logits(model, changed)
    assert torch.allclose(before[:, :PREFIX], after[:, :PREFIX], atol=1e-6)
    assert not torch.allclose(before[:, PREFIX:], after[:, PREFIX:], atol=1e-3)


@every
@each
@pytest.mark.parametrize("pad", [pad_left, pad_right], ids=["left", "right"])
def test_padding_changes_nothing(attention, position, pad):
    model, rows = model_of(attention, position), tokens()
    padded = logits(model, pad(rows, 3))
    real = padded[:, 3:] if pad is pad_left else padded[:, :-3]
    assert torch.allclose(real, logits(model, rows), atol=1e-5)
    assert padded.isfinite().all()
    padded.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@every
@each
@pytest.mark.parametrize("steps", [[1] * 20, [3, 1, 6, 10]], ids=["1", "k"])
@pytest.mark.parametrize("padding", [0, 3], ids=["unpadded", "left-padded"])
def test_step_by_step_equals_all_at_once(attention, position, steps, padding):
    model, rows = model_of(attention, position), pad_left(tokens(), padding)
    full, state, outputs, end = logits(model, rows), {}, [], padding
    for step in steps:
        end += step
        with torch.set_grad_enabled(len(steps) < 20):  # token by token without, and by chunks
            outputs.append(logits(model, rows[:, :end], incremental_state=state))
    assert torch.allclose(torch.cat(outputs, dim=1)[:, -20:], full[:, -20:], atol=1e-5)


@every
@each
@pytest.mark.parametrize("offset", [1, 5, 65000])
def test_shifted_positions(attention, position, offset):
    rows, scheme = tokens(), positions.parse(position)
    shifted = model_of(attention, position, decoder_position_offset=offset)
    if offset + rows.size(1) > longest(position):
        with pytest.raises(UserError, match=f"position {offset + 19} is beyond the "):
            logits(shifted, rows)
        return
    same = torch.allclose(
        logits(shifted, rows), logits(model_of(attention, position), rows), atol=1e-5
    )
    assert same == scheme.translation_invariant


@pytest.mark.parametrize("position", ["none", "permute", "permute(permutation=false)"])
def test_a_stride_is_a_power_of_permutation_and_decay(position):
    plain = logits(model_of("performer", position), tokens())
    strided = logits(model_of("performer", position, decoder_position_stride=2), tokens())
    assert torch.allclose(plain, strided, atol=1e-6) == (position == "none")


@each
def test_the_state_does_not_grow_and_follows_the_beam(attention):
    model, rows = model_of(attention, "permute"), tokens(batch=2)
    state, sizes = {}, []
    for end in (4, 9, 20):
        logits(model, rows[:, :end], incremental_state=state)
        held = [held for key, held in state.items() if key.endswith("attn_state")]
        sizes.append(sorted((name, tuple(t.shape)) for h in held for name, t in h.items()))
    assert sizes[0] == sizes[1] == sizes[2] and len(held) == 2
    model.decoder.reorder_incremental_state_scripting(state, torch.tensor([1, 0]))
    more = torch.cat([rows, tokens(batch=2, length=1, seed=5)], dim=1)[[1, 0]]
    there = logits(model, more, incremental_state=state)
    assert torch.allclose(there[:, -1], logits(model, more)[:, -1], atol=1e-5)


@each
def test_beam_search_scores_what_it_writes(attention):
    task, model = Task(), model_of(attention, "permute")
    generator = SequenceGenerator(
        [model], task.target_dictionary, beam_size=3, max_len_b=12, min_len=5
    )
    prefix = tokens(batch=2, length=4)
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": torch.tensor([4, 4])}}
    for hypotheses in generator.generate([model], sample, prefix_tokens=prefix):
        for hypothesis in hypotheses:
            written = hypothesis["tokens"]
            start = written.new_tensor([task.target_dictionary.eos()])
            full = logits(model, torch.cat([start, written[:-1]])[None])[0].log_softmax(-1)
            expected = full.gather(1, written[:, None]).squeeze(1)
            assert torch.allclose(hypothesis["positional_scores"], expected, atol=1e-4)


@each
@pytest.mark.parametrize("position", ["permute", "rope", "sinusoidal"])
def test_bfloat16_is_near_float32(attention, position):
    model, rows = model_of(attention, position), tokens()
    full = logits(model, rows)
    half = logits(model.to(torch.bfloat16), rows)
    assert half.dtype == torch.bfloat16 and (half - full).abs().max() < 0.1
    half.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@each
def test_a_state_dict_makes_the_model_again(attention):
    model, rows = model_of(attention, "permute"), tokens()
    other = model_of(attention, "permute(seed=9)", seed=2)
    assert not torch.allclose(logits(other, rows), logits(model, rows), atol=1e-3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, rows), logits(model, rows))


def test_random_features_are_drawn_anew_in_training_alone():
    model = model_of("performer(features=favor,m=8,redraw=10)", "none")
    directions = model.decoder.layers[0].self_attn.feature_map.directions
    before = directions.clone()
    model.set_num_updates(10)
    assert torch.equal(directions, before)
    model.train().set_num_updates(10)
    assert not torch.equal(directions, before)
    first, second = (layer.self_attn.feature_map.directions for layer in model.decoder.layers)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_attention": "performer", "decoder_position": "shaw"}, "matrix of scores"),
        (
            {"decoder_attention": "performer", "decoder_position": "rope+t5"},
            "go: none, learned",
        ),
        (
            {"decoder_attention": "performer", "attention_dropout": 0.1},
            "--attention-dropout 0.1",
        ),
        ({"decoder_position": "permute"}, "--decoder-attention performer"),
        ({"decoder_attention": "performer(m=3)"}, "not random"),
        ({"decoder_attention": "perfomer"}, "did you mean"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        build(**options)


def test_no_other_attention_at_evaluation():
    trained = SimpleNamespace(decoder_position="none", decoder_attention="performer")
    stock.refuse_other_scheme(trained, {"decoder_attention": "performer()"})
    with pytest.raises(UserError, match="trained with 'performer' attention"):
        stock.refuse_other_scheme(trained, {"decoder_attention": "softmax"})


def test_masks_and_weights_are_refused():
    model, rows = model_of("performer", "none"), tokens()
    with pytest.raises(ValueError, match="no weights"):
        logits(model, rows, full_context_alignment=True)
    assert PAD not in rows
