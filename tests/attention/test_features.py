"""Feature maps: their formulas, the kernel that random features estimate, and their draws."""

import math

import pytest
import torch

from pe_fairseq.attention import spec
from pe_fairseq.attention.features import FEATURES, orthogonal_directions
from pe_fairseq.errors import UserError

WIDTH = 8
RANDOM = [name for name, feature_map in FEATURES.items() if feature_map.random]


def feature_map(text, seed=0, head_dim=WIDTH):
    return spec.parse(text).feature_map(head_dim, torch.Generator().manual_seed(seed))


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def loops(name, x, directions):
    """The features of one vector, from the formula."""
    if name == "relu":
        return [max(a, 0.0) + 1e-3 for a in x]
    if name == "elu":
        return [a + 1 if a > 0 else math.exp(a) for a in x]
    if name == "favor":
        x = [a / len(x) ** 0.25 for a in x]
    products = [sum(a * b for a, b in zip(row, x)) for row in directions]
    if name == "favor-relu":
        return [max(a, 0.0) + 1e-3 for a in products]
    half = sum(a * a for a in x) / 2
    return [math.exp(a - half) / math.sqrt(len(directions)) for a in products]


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_their_formula(name):
    phi, x = feature_map(f"performer(features={name})").double(), numbers(2, 3, 5, WIDTH)
    directions = phi.directions.tolist() if phi.random else None
    features, log_scale = phi.key(x)
    got = features if log_scale is None else features * log_scale.exp().unsqueeze(-1)
    want = [loops(name, row.tolist(), directions) for row in x.flatten(0, 2)]
    assert torch.allclose(got.flatten(0, 2), torch.tensor(want, dtype=torch.float64), atol=1e-9)
    # a query's features are the same up to one factor for each
    ratio = phi.query(x) / got
    assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio))
    assert (features > 0).all() and phi.size == features.size(-1)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_features_stay_finite(name, dtype, size):
    phi = feature_map(f"performer(features={name})").to(dtype)
    features, log_scale = phi.key((size * numbers(2, 3, 50, WIDTH)).to(dtype))
    assert features.isfinite().all() and (features >= 0).all()
    assert log_scale is None or log_scale.isfinite().all()
    if phi.random:
        assert features.dtype == torch.float32


@pytest.mark.parametrize("m", [8, 64])
def test_favor_estimates_the_softmax_kernel(m):
    """The mean over many draws is exp(q · k / √W)."""
    q, k = 0.4 * numbers(20, WIDTH), 0.4 * numbers(20, WIDTH, seed=1)
    estimates = []
    for seed in range(800):
        phi = feature_map(f"performer(features=favor,m={m})", seed).double()
        (a, a_scale), (b, b_scale) = phi.key(q), phi.key(k)
        estimates.append((a * b).sum(-1) * (a_scale + b_scale).exp())
    estimates = torch.stack(estimates)
    exact = ((q * k).sum(-1) / math.sqrt(WIDTH)).exp()
    error = estimates.std(0) / math.sqrt(len(estimates))
    assert ((estimates.mean(0) - exact).abs() < 4 * error).all()
    assert (error < 0.1 * exact).all()


def test_directions_are_orthogonal_in_blocks_and_gaussian_alone():
    w = orthogonal_directions(20, WIDTH, torch.Generator().manual_seed(0))
    assert w.shape == (20, WIDTH)
    for block in w.split(WIDTH):
        products = block @ block.T
        assert torch.allclose(products, products.diagonal().diag(), atol=1e-9)
    many = torch.stack(
        [orthogonal_directions(3, 4, torch.Generator().manual_seed(s)) for s in range(4000)]
    )
    for row in range(3):
        assert many[:, row].mean(0).abs().max() < 0.06
        assert torch.allclose(many[:, row].T.cov(), torch.eye(4).double(), atol=0.12)
    # with wrong signs, the first row of each block has a side that it prefers
    assert (many[:, 0, 0] > 0).double().mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", RANDOM)
def test_redraws(name):
    phi = feature_map(f"performer(features={name},redraw=10)").train()
    first = phi.directions.clone()
    phi.set_num_updates(9)
    assert torch.equal(phi.directions, first)
    phi.set_num_updates(10)
    second = phi.directions.clone()
    assert not torch.allclose(second, first)
    phi.set_num_updates(19)
    assert torch.equal(phi.directions, second)

    other = feature_map(f"performer(features={name},redraw=10)", seed=5).train()
    assert not torch.allclose(other.directions, first)
    other.load_state_dict(phi.state_dict())
    assert torch.equal(other.directions, second)
    other.set_num_updates(15)  # no draw is due: that of the checkpoint stands
    assert torch.equal(other.directions, second)
    other.set_num_updates(20), phi.set_num_updates(20)
    assert torch.equal(other.directions, phi.directions)
    assert not torch.allclose(other.directions, second)

    phi.eval().set_num_updates(1000)
    assert torch.equal(other.directions, phi.directions), "evaluation draws nothing"


@pytest.mark.parametrize("name", RANDOM)
def test_one_draw(name):
    phi = feature_map(f"performer(features={name},redraw=0)").train()
    first = phi.directions.clone()
    phi.set_num_updates(10**6)
    assert torch.equal(phi.directions, first)


@pytest.mark.parametrize(
    "text", ["softmax", "performer", "performer(features=favor,m=64,redraw=0,width=4)"]
)
def test_a_spec_is_read_and_written(text):
    assert str(spec.parse(text)) == text
    assert spec.parse(text) == spec.parse(f" {text} ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("perfomer", "unknown attention 'perfomer' (did you mean 'performer'?)"),
        ("softmax+performer", "cannot read 'softmax+performer' in attention spec"),
        ("softmax(m=3)", "'softmax' has no option 'm'; its options: it has none"),
        ("performer(features=rely)", "is no feature map (did you mean 'relu'?); there are"),
        ("performer(m=8)", "'relu' features are not random: leave m out"),
        ("performer(features=elu,redraw=8)", "'elu' features are not random: leave redraw out"),
        ("performer(features=elu,epsilon=1)", "'elu' features have no epsilon"),
        ("performer(features=favor,epsilon=1)", "'favor' features have no epsilon"),
        ("performer(features=favor,m=0)", "m=0 random features: it must be 1 or more"),
        ("performer(features=favor,m=none,redraw=-1)", "redraw=-1 must be 0"),
        ("performer(epsilon=0)", "epsilon=0 must be above 0"),
        ("performer(epsilon=nan)", "epsilon=nan must be above 0"),
        ("performer(width=0)", "width=0 must be 1 or more"),
        ("performer(width=2.5)", "takes a whole number, not '2.5'"),
        ("performer(features=favor,normalize=false)", "leave normalize=false out"),
        ("performer(features=${x})", "contains '${'"),
    ],
)
def test_bad_specs_are_refused(text, message):
    with pytest.raises(UserError) as error:
        spec.parse(text)
    assert message in str(error.value)
