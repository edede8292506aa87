"""Positions in an image: where a token stands, what is refused, and what the two schemes do."""

import logging
from collections import defaultdict

import pytest
import torch
from build import SMALL, build, tokens
from linear_reference import by_loops

from pe_fairseq import attention, positions
from pe_fairseq.errors import UserError
from pe_fairseq.models.linear_self_attention import LinearSelfAttention
from pe_fairseq.models.self_attention import SelfAttention
from pe_fairseq.positions import ModelSize, PositionIds
from pe_fairseq.positions.image import Image

HEADS, WIDTH = 2, 22
SIZE = ModelSize(HEADS * WIDTH, max_positions=64, heads=HEADS)
TWO_SIDED = ModelSize(HEADS * WIDTH, max_positions=64, heads=HEADS, causal=False)
IMAGES = [
    Image(width=5, height=3, prefix=1, suffix=1),
    Image(width=3, height=5, prefix=0, suffix=2),
    Image(width=1, height=4, prefix=3, suffix=0),
    Image(width=4, height=1, prefix=0, suffix=0),
]
WIDE = "width=5,height=3"  # 17 positions

every_image = pytest.mark.parametrize("image", IMAGES, ids=str)


def places(image):
    """(column, row) of every position, written down one after the other."""
    found = [(0, 0) for _ in range(image.prefix)]
    for row in range(image.height):
        for column in range(image.width):
            found.append((column, row))
    return found + [(image.width - 1, image.height - 1) for _ in range(image.suffix)]


def spec(name, image, **options):
    return positions.parse(
        f"{name}(width={image.width},height={image.height},prefix={image.prefix},"
        f"suffix={image.suffix}{''.join(f',{k}={v}' for k, v in options.items())})"
    )


def generator(name=""):
    return torch.Generator().manual_seed(5)


def stepped(x, permutation, steps):
    for _ in range(steps):
        x = [x[a] for a in permutation]
    return x


@every_image
def test_rows_are_read_one_after_the_other(image):
    expected = places(image)
    assert image.positions == len(expected)
    columns, rows = image.coordinates(torch.arange(image.positions)[None], whole=True)
    assert list(zip(columns[0].tolist(), rows[0].tolist())) == expected


def test_corners():
    """Chen 2021's images: [CLS], 32 × 32 pixels, [SEP]."""
    columns, rows = Image().coordinates(torch.tensor([[0, 1, 32, 33, 993, 1024, 1025]]), True)
    assert columns.tolist() == [[0, 0, 31, 0, 0, 31, 31]]
    assert rows.tolist() == [[0, 0, 0, 1, 31, 31, 31]]


@every_image
def test_each_half_takes_as_many_steps_as_its_column_or_row(image):
    module = spec("permute2d", image).query_key_map(SIZE, layer=0)
    query, key = torch.randn(2, 1, HEADS, image.positions, WIDTH, dtype=torch.float64)
    drawn = torch.Generator().manual_seed(1)
    half = WIDTH // 2
    permutations = [torch.randperm(half, generator=drawn).tolist() for _ in range(HEADS)]
    assert module.of_half.permutations.tolist() == permutations
    prepared = module.prepare(torch.arange(image.positions)[None])
    for x, got in zip((query, key), module(query, key, prepared)):
        for head, permutation in enumerate(permutations):
            for position, (column, row) in enumerate(places(image)):
                vector = x[0, head, position].tolist()
                assert got[0, head, position].tolist() == [
                    *stepped(vector[:half], permutation, column),
                    *stepped(vector[half:], permutation, row),
                ]


def scores(module, image):
    """Products of one query with one key, placed at all pairs of positions: ``(H, N, N)``."""
    drawn = torch.randn(2, 1, HEADS, 1, WIDTH, dtype=torch.float64, generator=generator())
    query, key = drawn.expand(-1, -1, -1, image.positions, -1)
    q, k = module(query, key, module.prepare(torch.arange(image.positions)[None]))
    return (q @ k.mT)[0]


def test_scores_follow_from_the_difference_of_columns_and_of_rows():
    image = Image(width=5, height=4, prefix=2, suffix=1)
    found = defaultdict(list)
    matrix = scores(spec("permute2d", image, seed=4).query_key_map(SIZE, layer=0), image)
    for i, (c_i, r_i) in enumerate(places(image)):
        for j, (c_j, r_j) in enumerate(places(image)):
            found[c_j - c_i, r_j - r_i].append(matrix[:, i, j])
    for equal in found.values():
        assert all(torch.allclose(x, equal[0], atol=1e-12) for x in equal)
    distinct = {tuple(round(x, 9) for x in equal[0].tolist()) for equal in found.values()}
    assert len(found) == 9 * 7 and len(distinct) > 50


def test_a_shift_by_a_position_is_no_shift_in_the_image():
    """The ends of rows are neighbours in the text and not in the image."""
    image = Image(width=5, height=3, prefix=0, suffix=0)
    matrix = scores(spec("permute2d", image).query_key_map(SIZE, layer=0), image)
    assert not positions.parse("permute2d").translation_invariant
    inside, across = matrix[:, 2, 3], matrix[:, 4, 5]
    assert torch.allclose(inside, matrix[:, 7, 8]) and not torch.allclose(inside, across)


def modules_of(image, size):
    """Each scheme's module, as a function of ids."""
    return {
        "permute2d": spec("permute2d", image).query_key_map(size, layer=0).prepare,
        "learned2d": spec("learned2d", image).embedding(size, generator()),
    }


@every_image
@pytest.mark.parametrize("name", ["permute2d", "learned2d"])
def test_positions_beyond_the_image_are_refused(image, name):
    end = image.positions
    for size in (SIZE, TWO_SIDED):
        of = modules_of(image, size)[name]
        of(torch.arange(end)[None])
        for ids in (torch.arange(end + 1)[None], torch.tensor([[0, end - 1], [end, 0]])):
            with pytest.raises(UserError) as error:
                of(ids)
            assert str(error.value) == (
                f"position {end} is beyond the image, which ends at position {end - 1} "
                f"(width={image.width}, height={image.height}, prefix={image.prefix}, "
                f"suffix={image.suffix}). Give the width and height of your images, or use "
                "shorter blocks"
            )


@pytest.mark.parametrize("name", ["permute2d", "learned2d"])
def test_an_image_is_whole_where_tokens_see_later_ones(name):
    image = IMAGES[0]
    causal, two_sided = (modules_of(image, size)[name] for size in (SIZE, TWO_SIDED))
    for length in range(1, image.positions):
        causal(torch.arange(length)[None])
        with pytest.raises(UserError) as error:
            two_sided(torch.arange(length)[None])
        assert str(error.value) == (
            f"a sequence ends at position {length - 1}, and the image at position 16 "
            "(width=5, height=3, prefix=1, suffix=1): where tokens see later ones, a sequence "
            "is one whole image. Give the width and height of your images"
        )
    whole = torch.arange(image.positions)
    # padding behind a row has the last id again, before it the first
    two_sided(torch.stack([torch.cat([whole, whole[-1:]]), torch.cat([whole[:1], whole])]))
    with pytest.raises(UserError, match="ends at position 15"):
        two_sided(torch.stack([whole, (whole - 1).clamp(min=0)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("width=0", "width=0 must be 1 or more"),
        ("height=-3", "height=-3 must be 1 or more"),
        ("prefix=-1", "prefix=-1 must be 0 or more"),
        ("suffix=-1", "suffix=-1 must be 0 or more"),
        ("width=2.5", "takes a whole number, not '2.5'"),
    ],
)
@pytest.mark.parametrize("name", ["permute2d", "learned2d"])
def test_bad_sizes(name, options, message):
    with pytest.raises(UserError) as error:
        positions.parse(f"{name}({options})")
    assert message in str(error.value)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_bad_seeds(seed):
    with pytest.raises(UserError, match=f"seed={seed} must be 0 or more, below"):
        positions.parse(f"permute2d(seed={seed})")


def test_features_that_do_not_halve_are_refused():
    scheme = positions.parse("permute2d")
    odd = ModelSize(16, max_positions=64, heads=2, features=9)
    for use in (lambda: scheme.query_key_map(odd, layer=0), lambda: scheme.caution(odd)):
        with pytest.raises(UserError, match="one to rows; 9 do not halve"):
            use()
    even = ModelSize(18, max_positions=64, heads=2, features=36)
    assert scheme.query_key_map(even, layer=0).of_half.permutations.shape == (2, 18)


def test_layers_share_permutations_or_have_their_own():
    size = ModelSize(HEADS * WIDTH, max_positions=64, heads=HEADS, layers=2)

    def layers(text):
        built = positions.build_layers(positions.parse(text), size, generator)
        return [layer.query_key_map for layer in built]

    a, b = layers("permute2d")
    assert a is b
    a, b = layers(f"permute2d(per_layer=true,seed={2**64 - 1})")
    assert not torch.equal(a.of_half.permutations, b.of_half.permutations)


def test_a_checkpoint_holds_the_permutations_of_half_the_features():
    a, b = (spec("permute2d", IMAGES[0], seed=seed).query_key_map(SIZE, 0) for seed in (1, 2))
    ids = torch.arange(17)[None]
    assert list(a.state_dict()) == ["of_half.permutations"]
    assert not torch.equal(a.prepare(ids)[0], b.prepare(ids)[0])
    b.load_state_dict(a.state_dict())
    assert all(torch.equal(x, y) for x, y in zip(a.prepare(ids), b.prepare(ids)))


def test_tables_start_as_one_learned_table_does():
    size = ModelSize(64, max_positions=512)
    module = positions.parse("learned2d(width=50,height=70)").embedding(size, generator())
    assert module.columns.shape == (50, 64) and module.rows.shape == (70, 64)
    vectors = module.columns[:, None] + module.rows
    assert vectors.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not torch.equal(module.columns, module.rows[:50])


def test_a_model_says_where_an_axis_repeats(caplog):
    """Heads of 8: half of them is back after at most 4 steps, a column of 32 has 31."""

    def said(position, **options):
        with caplog.at_level(logging.WARNING):
            build(decoder_position=position, **options)
        messages = [r.message for r in caplog.records if "permute2d" in r.message]
        caplog.clear()
        return messages

    for sides in ("width=32,height=2", "width=2,height=32"):
        (message,) = said(f"permute2d({sides})")
        assert "permute2d: in 2 of 2 heads nearly all features" in message
        assert "below 32 columns or rows" in message and "head 1: 100% at" in message
    large = {"decoder_embed_dim": 256, "decoder_attention_heads": 2}
    assert not said("permute2d(width=4,height=4)", **large)


def test_a_sum_ends_where_its_first_part_does():
    size = ModelSize(16, max_positions=10)
    assert positions.parse(f"permute2d({WIDE})").longest(size) == 17
    assert positions.parse(f"learned+permute2d({WIDE})").longest(size) == 10
    assert positions.parse(f"sinusoidal+permute2d({WIDE})").longest(size) == 17
    assert positions.parse("sinusoidal+rope").longest(size) is None
    both = positions.parse(f"learned2d({WIDE})+permute2d(width=2,height=3)")
    assert both.longest(size) == 8 and both.refusal(7) is None
    assert "position 8 is beyond the image, which ends at position 7" in both.refusal(8)


@pytest.mark.parametrize("kind", ["softmax", "performer"])
@pytest.mark.parametrize("name", ["permute2d", "learned2d"])
def test_a_language_model_writes_an_image_and_no_token_more(kind, name):
    model = build(decoder_attention=kind, decoder_position=f"{name}({WIDE})")
    rows, state = tokens(length=18), {}
    full = model(rows[:, :17])[0]
    for end in range(1, 18):
        step = model(rows[:, :end], incremental_state=state)[0]
        assert torch.allclose(step[:, -1], full[:, end - 1], atol=1e-5)
    refusal = model.decoder.refusal(18)
    assert model.decoder.refusal(17) is None and refusal.startswith("position 17 is beyond")
    for options in ({}, {"incremental_state": state}):
        with pytest.raises(UserError) as error:
            model(rows, **options)
        assert str(error.value) == refusal
    model.decoder.set_position_ids(PositionIds(stride=2))
    assert model.decoder.refusal(9) is None and "position 18" in model.decoder.refusal(10)


def test_a_rule_for_a_table_is_none_for_an_image():
    clamped = {"decoder_position_beyond": "clamp", "max_target_positions": 10}
    model = build(decoder_position=f"learned+permute2d({WIDE})", **clamped)
    model(tokens(length=17))
    assert model.decoder.refusal(17) is None and model.decoder.refusal(18) is not None
    with pytest.raises(UserError, match="position 17 is beyond the image"):
        model(tokens(length=18))
    with pytest.raises(UserError, match=f"'learned2d.{WIDE}.' has no table of one vector per"):
        build(decoder_position=f"learned2d({WIDE})", **clamped)


def two_sided_attention(kind, scheme):
    torch.manual_seed(0)
    dim, heads = SMALL["decoder_embed_dim"], SMALL["decoder_attention_heads"]
    chosen = attention.parse(kind)
    features = None
    if chosen.linear:
        module = LinearSelfAttention(dim, heads, linear=chosen, causal=False)
        module.feature_map = chosen.feature_map(dim // heads, generator())
        features = module.feature_map.size
    else:
        module = SelfAttention(dim, heads, causal=False)
    size = ModelSize(dim, max_positions=64, heads=heads, causal=False, features=features)
    (layer,) = positions.build_layers(scheme, size, generator)
    module.set_positions(layer, PositionIds())
    return module.double()


@pytest.mark.parametrize("kind", ["softmax", "performer"])
def test_attention_over_other_lengths_is_refused(kind):
    module = two_sided_attention(kind, positions.parse(f"permute2d({WIDE})"))
    for length, message in (
        (16, "ends at position 15, and the image at position 16"),
        (18, "position 17 is beyond the image"),
    ):
        with pytest.raises(UserError, match=message):
            module(torch.randn(length, 2, 16, dtype=torch.float64), need_weights=False)


def test_linear_attention_over_a_whole_image():
    """Against loops: features permuted step by step, every token sees every other."""
    image = IMAGES[0]
    module = two_sided_attention("performer", spec("permute2d", image))
    x = torch.randn(image.positions, 1, 16, dtype=torch.float64, generator=generator())
    mapped = module.positions.query_key_map

    def heads(projected):
        return projected.view(image.positions, 1, 2, 8).permute(1, 2, 0, 3)

    def turned(features):
        half = [[[None] * image.positions for _ in range(2)]]
        for head, permutation in enumerate(mapped.of_half.permutations.tolist()):
            for position, (column, row) in enumerate(places(image)):
                vector = features[0, head, position].tolist()
                half[0][head][position] = [
                    *stepped(vector[:4], permutation, column),
                    *stepped(vector[4:], permutation, row),
                ]
        return half

    q, k, v = (heads(f(x)) for f in (module.q_proj, module.k_proj, module.v_proj))
    q, k = (x.clamp(min=0) + 1e-3 for x in (q, k))
    expected = by_loops(turned(q), turned(k), v.tolist(), causal=False, normalize=True)
    expected = torch.tensor(expected, dtype=torch.float64).permute(2, 0, 1, 3)
    expected = module.out_proj(expected.reshape(image.positions, 1, 16))
    assert torch.allclose(module(x)[0], expected, atol=1e-9)
