"""PermuteFormer's permutations: their powers, how they are drawn, what is said of them."""

import logging
import math

import pytest
import torch
from build import LENGTH, build

from pe_fairseq import positions
from pe_fairseq.errors import UserError
from pe_fairseq.positions import ModelSize
from pe_fairseq.positions.permute import (
    RELEASED_SEED,
    Permutations,
    draw,
    draw_below,
    heads_that_return,
    largest_return,
)

HEADS, WIDTH = 3, 16
SIZE = ModelSize(HEADS * WIDTH, max_positions=64, heads=HEADS, layers=2)


def permuted(x, permutation):
    return [x[a] for a in permutation]


def after(permutation, steps):
    """What each number of steps of π makes of 0, 1, 2, …, one step after the other."""
    x = list(range(len(permutation)))
    for _ in range(steps):
        yield x
        x = permuted(x, permutation)


def squared(permutation, times):
    for _ in range(times):
        permutation = permuted(permutation, permutation)
    return permutation


def brute_return(permutation, length):
    """The largest count of numbers at their place, and the first distance that has it."""
    found, worst = 0, 0
    for distance, x in enumerate(after(permutation, length)):
        back = sum(place == number for place, number in enumerate(x))
        if distance and back > found:
            found, worst = back, distance
    return found / len(permutation), worst


def random_permutations(count):
    generator = torch.Generator().manual_seed(3)
    for number in range(count):
        yield torch.randperm(1 + number % 30, generator=generator).tolist()


@pytest.fixture(scope="module")
def drawn():
    return draw(HEADS, WIDTH, seed=1)


def map_of(permutations):
    return Permutations(torch.tensor(permutations))


def test_powers_are_steps_one_after_the_other(drawn):
    count = 5001
    power, inverse = map_of(drawn).prepare(torch.arange(count)[None])
    expected = torch.tensor([list(after(permutation, count)) for permutation in drawn])
    assert torch.equal(power[0], expected)
    there_and_back = power.gather(-1, inverse)
    assert torch.equal(there_and_back, torch.arange(WIDTH).expand_as(power))


def test_powers_at_the_largest_positions(drawn):
    """π^(2^24) by squaring, then back by steps of the inverse."""
    back = 40
    ids = 2**24 - 1 - torch.arange(back)
    power = map_of(drawn).prepare(ids[None])[0][0]
    for head, permutation in enumerate(drawn):
        x = squared(permutation, 24)
        for n in range(back):
            x = permuted(x, sorted(range(WIDTH), key=permutation.__getitem__))
            assert power[head, n].tolist() == x


def test_rows_of_ids_have_their_own_powers(drawn):
    ids = torch.tensor([[0, 3, 3], [7, 0, 900]])
    together = map_of(drawn).prepare(ids)
    for row in range(2):
        alone = map_of(drawn).prepare(ids[row : row + 1])
        assert all(torch.equal(a[row], b[0]) for a, b in zip(together, alone))


def test_queries_and_keys_are_taken_from_their_places(drawn):
    query, key = torch.randn(2, 2, HEADS, 5, WIDTH, dtype=torch.float64)
    module, ids = map_of(drawn), torch.tensor([[4, 0, 1, 9, 30]])
    for x, got in zip((query, key), module(query, key, module.prepare(ids))):
        for h, permutation in enumerate(drawn):
            for n, position in enumerate(ids[0].tolist()):
                *_, place = after(permutation, position + 1)
                for b in range(2):
                    assert got[b, h, n].tolist() == permuted(x[b, h, n].tolist(), place)


@pytest.mark.parametrize("length", [2, 3, 7, 40])
def test_largest_return_counts_what_is_back(length):
    found = set()
    for permutation in random_permutations(60):
        expected = brute_return(permutation, length)
        assert largest_return(permutation, length) == pytest.approx(expected)
        found.add(expected[0])
    assert len(found) > 5


def of_cycles(*lengths):
    """A permutation whose cycles have these lengths, one behind the other."""
    permutation, start = [], 0
    for length in lengths:
        permutation += [start + (k + 1) % length for k in range(length)]
        start += length
    return permutation


def test_a_long_order_does_not_say_that_little_is_back():
    """Cycles of 7, 5, 4 and 3: order 420, and all but the 3 are back after 140 steps."""
    permutation = of_cycles(7, 5, 4, 3)
    assert largest_return(permutation, 420) == (16 / 19, 140)
    assert largest_return(permutation, 421) == (1.0, 420)


def test_heads_of_which_nine_tenths_are_back_are_named():
    nine_tenths, less = of_cycles(*[3] * 6, 2), of_cycles(*[3] * 5, 4, 1)
    assert heads_that_return([less, nine_tenths], length=4) == ["head 1: 90% at 3"]
    assert heads_that_return([less, nine_tenths], length=3) == []
    assert heads_that_return([nine_tenths], length=7) == ["head 0: 100% at 6"]


def test_the_released_permutations():
    """Orders of the 8 heads of 64 that Chen 2021's code draws in every layer."""
    scheme = positions.parse(f"permute(seed={RELEASED_SEED})")
    module = scheme.query_key_map(ModelSize(8 * 64, max_positions=512, heads=8), layer=0)
    orders = []
    for permutation in module.permutations.tolist():
        start, x, order = list(range(64)), permutation, 1
        while x != start:
            x, order = permuted(x, permutation), order + 1
        orders.append(order)
    assert orders == [220, 966, 2064, 64, 630, 962, 2310, 54]


@pytest.mark.parametrize("limit", [0.2, 0.7])
def test_drawn_below_a_limit(limit):
    found = draw_below(heads=8, width=64, seed=1, length=64, max_return=limit)
    assert len(found) == 8
    for permutation in found:
        assert sorted(permutation) == list(range(64))
        assert brute_return(permutation, 64)[0] <= limit
    assert len(set(map(tuple, found))) == 8
    assert any(brute_return(permutation, 64)[0] > limit for permutation in draw(8, 64, 1))


def test_the_limit_is_for_the_training_length():
    scheme = positions.parse("permute(max_return=0.5)")
    for length in (32, 256):
        size = ModelSize(2 * 64, max_positions=length, heads=2)
        for permutation in scheme.query_key_map(size, layer=0).permutations.tolist():
            assert brute_return(permutation, length)[0] <= 0.5
    short = scheme.query_key_map(ModelSize(2 * 64, max_positions=32, heads=2), layer=0)
    assert any(brute_return(p, 256)[0] > 0.5 for p in short.permutations.tolist())


def test_what_no_permutation_gives_is_refused():
    """Of 6 features none is away at every distance: the cycles' lengths add up to 6."""
    with pytest.raises(UserError, match=r"max_return=0.4: of 10,000 .* 6 features.*has 1.00"):
        draw_below(heads=2, width=6, seed=1, length=61, max_return=0.4)
    scheme = positions.parse("permute(max_return=0.4)")
    with pytest.raises(UserError, match="max_return=0.4"):
        scheme.query_key_map(ModelSize(12, max_positions=61, heads=2), layer=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("permutation=false,decay=false", "leaves nothing; that is 'none'"),
        ("seed=-1", "seed=-1 must be 0 or more"),
        (f"seed={2**64}", f"seed={2**64} must be 0 or more, below 2^64"),
        ("max_return=1", "max_return=1 is a fraction: 0 or more, below 1"),
        ("max_return=-0.5", "max_return=-0.5 is a fraction"),
        ("max_return=nan", "max_return=nan is a fraction"),
        ("permutation=false,max_return=0.5", "max_return has no use with permutation=false"),
        ("decay=0.5", "takes true or false, not '0.5'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError) as error:
        positions.parse(f"permute({options})")
    assert message in str(error.value)


def test_layers_share_permutations_or_have_their_own():
    for seed in (1, 2**64 - 1):
        shared, own = (
            positions.build_layers(
                positions.parse(f"permute(seed={seed},per_layer={each})"),
                SIZE,
                lambda name: None,
            )
            for each in ("false", "true")
        )
        a, b = (layer.query_key_map for layer in shared)
        assert a is b
        a, b = (layer.query_key_map.permutations for layer in own)
        assert not torch.equal(a, b)


def test_heads_have_different_permutations(drawn):
    assert len(set(map(tuple, drawn))) == HEADS
    assert draw(HEADS, WIDTH, seed=2) != drawn == draw(HEADS, WIDTH, seed=1)


def test_decay_of_each_head():
    """r_h = sigmoid(2 + 3h / H), to the four places that papers print."""
    size = ModelSize(8 * WIDTH, max_positions=64, heads=8)
    rates = positions.parse("permute").log_decay(size).exp().tolist()
    expected = [0.8808, 0.9149, 0.9399, 0.9579, 0.9707, 0.9797, 0.9859, 0.9903]
    assert rates == pytest.approx(expected, abs=5e-5)
    assert rates == pytest.approx([1 / (1 + math.exp(-2 - 3 * h / 8)) for h in range(8)])
    two_sided = ModelSize(8 * WIDTH, max_positions=64, heads=8, causal=False)
    assert positions.parse("permute").log_decay(two_sided) is None
    assert positions.parse("permute(decay=false)").log_decay(size) is None


def warnings_of(caplog, **options):
    with caplog.at_level(logging.WARNING):
        build(decoder_attention="performer", **options)
    said = [record.message for record in caplog.records if "permute" in record.message]
    caplog.clear()
    return said


def test_a_model_says_which_heads_repeat(caplog):
    """Heads of 8 features repeat soon; the text has the numbers of a plain count."""
    (said,) = warnings_of(caplog, decoder_position="permute")
    heads = []
    for head, permutation in enumerate(draw(heads=2, width=8, seed=1)):
        fraction, distance = brute_return(permutation, LENGTH)
        if fraction >= 0.9:
            heads.append(f"head {head}: {fraction:.0%} at {distance}")
    assert heads and f"permute: in {len(heads)} of 2 heads nearly all 8 features" in said
    assert f"({', '.join(heads)}); max_return=0.7 draws others" in said
    assert f"below {LENGTH} tokens" in said
    large = {"decoder_embed_dim": 128, "decoder_attention_heads": 2}
    assert not warnings_of(caplog, decoder_position="permute(max_return=0.5)", **large)
    assert not warnings_of(caplog, decoder_position="permute(permutation=false)")


def test_a_checkpoint_holds_the_permutations(drawn):
    module, other = map_of(drawn), map_of(draw(HEADS, WIDTH, seed=2))
    state = module.state_dict()
    assert list(state) == ["permutations"] and state["permutations"].tolist() == drawn
    ids = torch.arange(100)[None]
    expected = module.prepare(ids)
    assert not torch.equal(other.prepare(ids)[0], expected[0])
    other.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    assert all(torch.equal(a, b) for a, b in zip(other.prepare(ids), expected))


def test_a_model_that_loads_a_checkpoint_takes_its_permutations():
    options = {"decoder_attention": "performer", "decoder_layers": 1}
    models = [build(decoder_position=f"permute(seed={seed})", **options) for seed in (1, 2)]
    state = models[0].state_dict()
    held = [name for name in state if name.endswith("permutations")]
    assert len(held) == 1 and not any(name.endswith("order") for name in state)
    maps = [m.decoder.layers[0].self_attn.positions.query_key_map for m in models]
    ids = torch.arange(50)[None]
    assert not torch.equal(maps[1].prepare(ids)[0], maps[0].prepare(ids)[0])
    models[1].load_state_dict(state)
    assert torch.equal(maps[1].prepare(ids)[0], maps[0].prepare(ids)[0])
