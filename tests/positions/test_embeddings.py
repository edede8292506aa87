"""Every embedding scheme against loops in float64, written from its formula."""

import math

import pytest
import torch
from torch import nn

from pe_fairseq import positions
from pe_fairseq.positions import SCHEMES, ModelSize

DIM, TRAINED, UNUSED = 6, 12, 2
SIZE = ModelSize(DIM, TRAINED, unused_rows=UNUSED)


def none(module, position):
    return [0.0] * DIM


def learned(module, position):
    return module.weight[UNUSED + position].tolist()


def place(position):
    """Column and row in an image of 3 × 3 after 2 tokens and before 1."""
    pixels = [(column, row) for row in range(3) for column in range(3)]
    return [(0, 0), (0, 0), *pixels, (2, 2)][position]


def learned2d(module, position):
    column, row = place(position)
    return (module.columns[column] + module.rows[row]).tolist()


def sinusoidal(module, position):
    """fairseq's table: row padding_idx + 1 + p, [sin | cos], exponents i / (D/2 − 1)."""
    half = DIM // 2
    angles = [(UNUSED + position) * 10000 ** (-i / (half - 1)) for i in range(half)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def sinusoidal_interleaved(module, position):
    """Vaswani et al. 2017, §3.5: PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos."""
    vector = []
    for i in range(DIM // 2):
        angle = position / 10000 ** (2 * i / DIM)
        vector += [math.sin(angle), math.cos(angle)]
    return vector


def learnable(module, position):
    """The same formulas with the module's own frequencies."""
    half = DIM // 2
    angles = [position * module.frequencies[i].item() for i in range(half)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


REFERENCES = {
    "none": none,
    "learnable-sinusoidal": learnable,
    "learned": learned,
    "learned2d(width=3,height=3,prefix=2,suffix=1)": learned2d,
    "sinusoidal": sinusoidal,
    "sinusoidal(layout=interleaved)": sinusoidal_interleaved,
}

# the row of each table that a position meets
ROWS = {
    "weight": lambda position: UNUSED + position,
    "columns": lambda position: place(position)[0],
    "rows": lambda position: place(position)[1],
}


def embedding(spec, size=SIZE):
    return positions.parse(spec).embedding(size, torch.Generator().manual_seed(5))


def test_every_embedding_scheme_has_a_reference():
    embeddings = {name for name, scheme in SCHEMES.items() if scheme.family == "embedding"}
    assert {positions.parse(spec).name for spec in REFERENCES} == embeddings | {"none"}


@pytest.mark.parametrize("spec", REFERENCES)
def test_vectors_and_gradients_equal_the_formula(spec):
    module = embedding(spec)
    ids = torch.tensor([[0, 1, 5, 11], [3, 3, 0, 2]])
    if spec == "none":
        assert module is None
        return
    vectors = module(ids)
    for row, id_row in zip(vectors.tolist(), ids.tolist()):
        for vector, position in zip(row, id_row):
            expected = REFERENCES[spec](module, position)
            assert vector == pytest.approx(expected, abs=1e-6)

    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    parameters = dict(module.named_parameters())
    if not parameters:
        return
    (vectors * weights).sum().backward()
    if "frequencies" in parameters:
        expected = torch.zeros(DIM // 2, dtype=torch.float64)
        for b, id_row in enumerate(ids.tolist()):
            for n, position in enumerate(id_row):
                for i, frequency in enumerate(module.frequencies.tolist()):
                    p = position
                    sine, cosine = weights[b, n, i].item(), weights[b, n, DIM // 2 + i].item()
                    expected[i] += sine * p * math.cos(frequency * p)
                    expected[i] -= cosine * p * math.sin(frequency * p)
        assert torch.allclose(module.frequencies.grad.double(), expected, atol=1e-4)
        return
    for name, table in parameters.items():
        expected = torch.zeros(table.shape, dtype=torch.float64)
        for b, id_row in enumerate(ids.tolist()):
            for n, position in enumerate(id_row):
                for d in range(DIM):
                    expected[ROWS[name](position), d] += weights[b, n, d].item()
        assert torch.allclose(table.grad.double(), expected, atol=1e-6)


def test_learned_between_two_rows_is_their_mean_by_distance():
    module = embedding("learned")
    got = module(torch.tensor([[2.25]], dtype=torch.float64))[0, 0]
    row = module.weight[UNUSED:]
    assert torch.allclose(got, 0.75 * row[2] + 0.25 * row[3], atol=1e-6)
    assert torch.equal(module(torch.tensor([[11.0]]))[0, 0], row[11])


def test_sinusoidal_equals_fairseq_at_any_position():
    pytest.importorskip("fairseq")
    from fairseq.modules import SinusoidalPositionalEmbedding

    for dim in (16, 7):
        table = SinusoidalPositionalEmbedding.get_embedding(70000, dim, UNUSED - 1)
        ids = torch.tensor([[0, 1, 511, 65000]])
        ours = embedding("sinusoidal", ModelSize(dim, TRAINED, unused_rows=UNUSED))(ids)
        assert torch.equal(ours[0], table[ids[0] + UNUSED])


def test_learned_frequencies_start_at_the_fixed_ones():
    ids = torch.arange(TRAINED)[None]
    spec = "sinusoidal(layout=interleaved,base=50)"
    assert torch.equal(embedding(spec)(ids), embedding(f"learnable-{spec}")(ids))
    # fairseq's own table starts at padding_idx + 1
    assert torch.equal(embedding("sinusoidal")(ids), embedding("learnable-sinusoidal")(ids + 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frequencies_stay_float32(dtype):
    module, ids = embedding("learnable-sinusoidal"), torch.tensor([[5000]])
    exact = module(ids)
    half = nn.Sequential(module).to(dtype)[0]
    assert half.frequencies.dtype == torch.float32
    assert torch.equal(half(ids), exact)
    assert module.double().frequencies.dtype == torch.float64


def test_learned_start():
    module = positions.parse("learned").embedding(
        ModelSize(64, 4000, unused_rows=2), torch.Generator().manual_seed(0)
    )
    assert module.weight[:2].abs().sum() == 0
    assert module.weight[2:].std().item() == pytest.approx(64**-0.5, rel=0.01)


def test_drawing_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    embedding("learned")
    assert torch.equal(torch.rand(1), expected)


def test_too_narrow_for_sinusoids():
    with pytest.raises(positions.scheme.UserError, match="embedding of 4 or more"):
        embedding("sinusoidal", ModelSize(3, TRAINED))
