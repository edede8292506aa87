"""Every scheme inside attention, against loops in float64 written from the formulas.

Outputs, and the gradient of every input and of every position parameter.
"""

import dataclasses
import math

import pytest
import torch
from build import SOFTMAX
from torch.utils._python_dispatch import TorchDispatchMode

from pe_fairseq import positions
from pe_fairseq.models.self_attention import SelfAttention
from pe_fairseq.positions import SCHEMES, ModelSize, PositionIds

HEADS, HEAD_DIM, LENGTH, BATCH = 2, 8, 7, 2
DIM = HEADS * HEAD_DIM
SIZE = ModelSize(DIM, max_positions=32, heads=HEADS, layers=2)
STRIDE, OFFSET = 3, 5


class Reference:
    """What a scheme does to one pair of a query and a key; by default nothing.

    ``p`` is the layer's parameters by name, ``m`` the distance of query and key.
    """

    causal = True
    whole = False  # where tokens see later ones, all rows have the same length

    def set_causal(self, causal):
        self.causal = causal

    def turn(self, x, position, head):
        return x

    def score(self, p, q, m, head):
        return 0.0

    def value(self, p, m, head):
        return [0.0] * HEAD_DIM


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


class Shaw(Reference):
    def __init__(self, clip, values=True, per_head=False):
        self.clip, self.values, self.per_head = clip, values, per_head

    def row(self, table, m, head):
        row = max(-self.clip, min(self.clip, m)) + self.clip
        return table[head][row] if self.per_head else table[row]

    def score(self, p, q, m, head):
        return dot(q, self.row(p["terms.0.key_table"], m, head)) / math.sqrt(HEAD_DIM)

    def value(self, p, m, head):
        if not self.values:
            return super().value(p, m, head)
        return self.row(p["terms.0.value_table"], m, head)


class SinusoidalRelative(Reference):
    def __init__(self, clip=None, released=False, values=True, learned=False, halves=False):
        self.clip, self.released, self.values = clip, released, values
        self.learned, self.halves = learned, halves

    def vector(self, p, m):
        if self.clip is not None:
            m = max(-self.clip, min(self.clip, m)) + (self.clip if self.released else 0)
        half = HEAD_DIM // 2
        if self.learned:
            frequencies = list(p["terms.0.frequencies"])
        elif self.halves:
            frequencies = [torch.tensor(10000 ** (-i / (half - 1))) for i in range(half)]
        else:
            frequencies = [torch.tensor(10000 ** (-2 * i / HEAD_DIM)) for i in range(half)]
        sines = [torch.sin(w * m) for w in frequencies]
        cosines = [torch.cos(w * m) for w in frequencies]
        if self.halves:
            return sines + cosines
        return [x for pair in zip(sines, cosines) for x in pair]

    def score(self, p, q, m, head):
        return dot(q, self.vector(p, m)) / math.sqrt(HEAD_DIM)

    def value(self, p, m, head):
        return self.vector(p, m) if self.values else super().value(p, m, head)


class Rope(Reference):
    def __init__(self, base=10000.0, rotated=HEAD_DIM, interleaved=False):
        self.base, self.rotated, self.interleaved = base, rotated, interleaved

    def turn(self, x, position, head):
        x = list(x)
        for i in range(self.rotated // 2):
            a, b = (2 * i, 2 * i + 1) if self.interleaved else (i, i + self.rotated // 2)
            angle = position * self.base ** (-2 * i / self.rotated)
            cos, sin = math.cos(angle), math.sin(angle)
            x[a], x[b] = x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos
        return x


class Alibi(Reference):
    def score(self, p, q, m, head):
        return -(2 ** (-8 * (head + 1) / HEADS)) * abs(m)


class T5(Reference):
    def __init__(self, buckets=32, farthest=128):
        self.buckets, self.farthest = buckets, farthest

    def score(self, p, q, m, head):
        n, buckets, first = max(m, 0), self.buckets, 0
        if not self.causal:
            n, buckets = abs(m), self.buckets // 2
            first = buckets if m < 0 else 0
        exact = buckets // 2
        if n >= exact:
            grown = math.log(n / exact) / math.log(self.farthest / exact)
            n = min(buckets - 1, exact + int(grown * (buckets - exact)))
        return p["terms.0.weight"][first + n][head]


class Sum(Reference):
    """The references of two parts; the second part's parameters come second."""

    def __init__(self, first, second):
        self.first, self.second = first, second

    @staticmethod
    def shifted(p):
        second = {n.replace("terms.1.", "terms.0."): x for n, x in p.items() if ".1." in n}
        return second or p  # the first part may have no term

    def set_causal(self, causal):
        for part in (self, self.first, self.second):
            part.causal = causal

    def turn(self, x, position, head):
        return self.second.turn(self.first.turn(x, position, head), position, head)

    def score(self, p, q, m, head):
        return self.first.score(p, q, m, head) + self.second.score(self.shifted(p), q, m, head)

    def value(self, p, m, head):
        both = self.first.value(p, m, head), self.second.value(self.shifted(p), m, head)
        return [a + b for a, b in zip(*both)]


class Permute(Reference):
    """One step of π for each position, taken one by one."""

    def __init__(self, seed=1):
        drawn = torch.Generator().manual_seed(seed)
        self.permutations = [torch.randperm(HEAD_DIM, generator=drawn) for _ in range(HEADS)]

    def turn(self, x, position, head):
        for _ in range(position):
            x = torch.stack([x[a] for a in self.permutations[head]])
        return x


class Permute2d(Reference):
    """As ``Permute``, half of the features by column and half by row."""

    whole = True

    def __init__(self, width, height, prefix, suffix, seed=1):
        drawn = torch.Generator().manual_seed(seed)
        half = HEAD_DIM // 2
        self.permutations = [torch.randperm(half, generator=drawn) for _ in range(HEADS)]
        self.places = [(0, 0)] * prefix
        self.places += [(column, row) for row in range(height) for column in range(width)]
        self.places += [(width - 1, height - 1)] * suffix

    def turn(self, x, position, head):
        halves = []
        for half, steps in zip((x[: HEAD_DIM // 2], x[HEAD_DIM // 2 :]), self.places[position]):
            for _ in range(steps):
                half = torch.stack([half[a] for a in self.permutations[head]])
            halves += half
        return halves


# embedding schemes do nothing inside attention
REFERENCES = {
    "none": Reference(),
    "learned": Reference(),
    "learned2d": Reference(),
    "sinusoidal": Reference(),
    "learnable-sinusoidal": Reference(),
    "shaw": Shaw(64),
    "shaw(clip=4)": Shaw(4),
    "shaw(max_relative_position=2,values=false)": Shaw(2, values=False),
    "shaw(clip=6,per_head=true)": Shaw(6, per_head=True),
    "sinusoidal-relative": SinusoidalRelative(),
    "sinusoidal-relative(layout=halves,values=false)": SinusoidalRelative(
        halves=True, values=False
    ),
    "nezha(clip=4,released=true)": SinusoidalRelative(clip=4, released=True),
    "learnable-sinusoidal-relative": SinusoidalRelative(learned=True),
    "learnable-sinusoidal-relative(clip=5)": SinusoidalRelative(clip=5, learned=True),
    "rope": Rope(),
    "rope(base=100,pairing=interleaved)": Rope(100, interleaved=True),
    "rope(fraction=0.5)": Rope(rotated=HEAD_DIM // 2),
    "alibi": Alibi(),
    "t5": T5(),
    "t5(buckets=8,max_distance=16)": T5(8, 16),
    "learned+shaw(clip=3)": Shaw(3),
    "shaw(clip=4)+alibi": Sum(Shaw(4), Alibi()),
    "shaw(clip=4)+t5": Sum(Shaw(4), T5()),
    "permute(decay=false)": Permute(),
    "permute(decay=false,seed=7)": Permute(7),
    # the last position of the test, 23, is the last of both images
    "permute2d(width=5,height=4,prefix=2,suffix=2)": Permute2d(5, 4, 2, 2),
    "permute2d(width=4,height=4,prefix=7,suffix=1,seed=7)": Permute2d(4, 4, 7, 1, seed=7),
    "rope+t5": Sum(Rope(), T5()),
}


def test_every_scheme_has_a_reference():
    assert {positions.parse(spec).name for spec in REFERENCES} >= set(SCHEMES)


def generator(name=""):
    return torch.Generator().manual_seed(3 + len(name))


def attention(spec, causal=True):
    torch.manual_seed(0)
    module = SelfAttention(DIM, HEADS, causal=causal).double()
    size = dataclasses.replace(SIZE, causal=causal)
    layers = positions.build_layers(positions.parse(spec), size, generator)
    if layers[0] is not None:
        with torch.no_grad():  # far from the start, where a bias is nearly nothing
            for parameter in layers[0].parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator()))
        module.set_positions(layers[0].double(), PositionIds(STRIDE, OFFSET))
    return module


def by_loops(module, reference, x, padding):
    """Self-attention of ``x`` ``(LENGTH, BATCH, DIM)``, one pair at a time."""
    p = dict(module.positions.named_parameters()) if module.positions is not None else {}
    q, k, v = module.q_proj(x), module.k_proj(x), module.v_proj(x)
    rows = []
    for i in range(LENGTH):
        for b in range(BATCH):
            place = torch.tensor([0] * LENGTH)
            count = 0
            for n in range(LENGTH):
                place[n] = OFFSET + STRIDE * count
                count += int(not padding[b, n])
            row = []
            for h in range(HEADS):
                part = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
                last = i + 1 if reference.causal else LENGTH
                seen = [j for j in range(last) if j == i or not padding[b, j]]
                query, here = q[i, b, part], int(place[i])
                turned = reference.turn(query, here, h)
                scores, values = [], []
                for j in seen:
                    m = here - int(place[j])
                    product = dot(turned, reference.turn(k[j, b, part], int(place[j]), h))
                    scores.append(
                        product / math.sqrt(HEAD_DIM) + reference.score(p, query, m, h)
                    )
                    value = reference.value(p, m, h)
                    values.append([a + c for a, c in zip(v[j, b, part], value)])
                exps = [torch.exp(score) for score in scores]
                row += [
                    sum(e * value[d] for e, value in zip(exps, values)) / sum(exps)
                    for d in range(HEAD_DIM)
                ]
            rows.append(torch.stack(row))
    return module.out_proj(torch.stack(rows).view(LENGTH, BATCH, DIM))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
@pytest.mark.parametrize("spec", REFERENCES)
def test_output_and_every_gradient(spec, causal):
    module, reference = attention(spec, causal), REFERENCES[spec]
    reference.set_causal(causal)
    x = torch.randn(LENGTH, BATCH, DIM, generator=generator(), dtype=torch.float64)
    x.requires_grad_()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, :2] = causal or not reference.whole
    real = ~padding.T
    expected = by_loops(module, reference, x, padding)[real]
    output = module(x, key_padding_mask=padding, need_weights=False)[0][real]
    assert torch.allclose(output, expected, atol=1e-6)

    direction = torch.randn(output.shape, generator=generator(), dtype=torch.float64)
    leaves = [x, *module.parameters()]
    got = torch.autograd.grad((output * direction).sum(), leaves, allow_unused=True)
    want = torch.autograd.grad((expected * direction).sum(), leaves, allow_unused=True)
    names = ["input", *(name for name, _ in module.named_parameters())]
    for name, ours, theirs in zip(names, got, want):
        ours = torch.zeros(()) if ours is None else ours
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        assert torch.allclose(ours.double(), theirs.double(), atol=2e-5), name
    if module.positions is not None and list(module.positions.parameters()):
        last = got[-1]
        assert last is not None and last.abs().max() > 1e-3, "the position parameters matter"


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return made


@pytest.mark.parametrize("spec", SOFTMAX)
def test_no_vector_per_pair(spec):
    """Nothing of shape (query_len, key_len, head_dim) is made, forward or backward."""
    length = 48
    module = attention(spec).float()
    x = torch.randn(length, 1, DIM, requires_grad=True)
    with Largest() as largest:
        module(x, need_weights=False)[0].sum().backward()
    assert largest.numel < length * length * HEAD_DIM


def test_t5_buckets_of_both_sides():
    """Two-sided: half the buckets for each sign, later keys the upper half."""
    from pe_fairseq.positions.t5 import bucket

    m = torch.tensor([0, 1, 7, 8, 200, -1, -7, -200])
    assert bucket(m, 32, 128, causal=False).tolist() == [0, 1, 7, 8, 15, 17, 23, 31]
    assert bucket(m, 32, 128, causal=True).tolist() == [0, 1, 7, 8, 31, 0, 0, 0]


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (8, [2**-h for h in range(1, 9)]),
        (12, [2**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_follow_the_released_rule(heads, expected):
    from pe_fairseq.positions.alibi import slopes

    assert slopes(heads) == pytest.approx(expected)


def test_layers_share_a_table_or_have_their_own():
    def layers(spec):
        first, second = positions.build_layers(positions.parse(spec), SIZE, generator)
        return first.terms[0], second.terms[0]

    a, b = layers("shaw")
    assert a is not b and not torch.equal(a.key_table, b.key_table)
    for shared in ("shaw(per_layer=false)", "t5"):
        a, b = layers(shared)
        assert a is b


def test_a_table_starts_the_same_whatever_it_is_combined_with():
    alone = positions.build_layers(positions.parse("shaw"), SIZE, generator)
    both = positions.build_layers(positions.parse("learned+shaw+t5"), SIZE, generator)
    assert torch.equal(alone[1].terms[0].key_table, both[1].terms[0].key_table)


def test_parts_of_a_sum_draw_from_streams_of_their_own():
    from build import build

    model = build(decoder_position="learned+t5")
    a = model.decoder.embed_positions.weight[2:].flatten()[:64]
    b = model.decoder.layers[0].self_attn.positions.terms[0].weight.flatten()[:64]
    assert torch.corrcoef(torch.stack([a, b]))[0, 1].abs() < 0.5


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("none", 0),
        ("sinusoidal", 0),
        ("sinusoidal-relative", 0),
        ("learned", 393_216),
        ("learnable-sinusoidal", 384),
        ("shaw(per_layer=false,values=false)", 8_256),
        ("shaw(per_layer=false)", 16_512),
        ("shaw", 198_144),
        ("learnable-sinusoidal-relative(per_layer=false)", 32),
        ("learnable-sinusoidal-relative", 32 * 12),
        ("learned+shaw", 393_216 + 198_144),
        ("t5", 32 * 12),
    ],
)
def test_parameter_counts_of_a_bert_base(spec, parameters):
    """D = 768, 12 heads, 12 layers, 512 positions, clip 64."""
    from pe_fairseq.schemes import count_parameters

    size = ModelSize(768, max_positions=512, heads=12, layers=12)
    assert count_parameters(positions.parse(spec), size) == parameters
