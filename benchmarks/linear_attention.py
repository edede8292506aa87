"""Causal linear attention against softmax attention and its peers, in one run.

    OMP_NUM_THREADS=2 python benchmarks/linear_attention.py --lengths 4096,16384

Three parts: ``core``, from mapped features and values to the output, forward and backward;
``layer``, the same from a layer's input to its output, with projections and feature map;
``decode``, one more token for two sentences with a beam of 5 after so many. Float32, batch 2,
8 heads of 64, normalised.

``performer`` and ``permuteformer`` (with its decays) are ours, ``sdpa`` is torch's causal
softmax attention, which has no features. Peers are measured where they are installed:

    pip install --no-build-isolation pytorch-fast-transformers   # compiles; if that fails for
                                                                 # want of CUDA, hide nvcc
    pip install performer-pytorch

A time is the median of ``--repeats`` rounds in which all take turns. Peak memory is what a
process of its own takes beyond what it held when inputs were made (Linux alone).
"""

import argparse
import functools
import importlib.util
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import medians, peak_mib
from rich.console import Console
from rich.table import Table

import pe_fairseq
from pe_fairseq import attention, positions
from pe_fairseq.attention.linear import chunked
from pe_fairseq.compat import memory
from pe_fairseq.models.linear_self_attention import LinearSelfAttention
from pe_fairseq.models.self_attention import SelfAttention

BATCH, HEADS, HEAD_DIM, BEAM = 2, 8, 64, 5
DIM = HEADS * HEAD_DIM
LENGTHS = "256,1024,4096,16384"
FEATURES = "64,256"
PARTS = {
    "core": "attention core, forward + backward",
    "layer": "layer with projections, forward + backward",
    "decode": "one more token after so many",
}
OURS = {"performer": "none", "permuteformer": "permute"}
PEERS = {"fast-transformers": "fast_transformers", "performer-pytorch": "performer_pytorch"}
IMPLEMENTATIONS = [*OURS, "sdpa", *PEERS]
MOST_STATES = 8 * 2**30


def scheme_and_size(name, features, length):
    size = positions.ModelSize(
        DIM, max_positions=length, heads=HEADS, causal=True, features=features
    )
    return positions.parse(OURS[name]), size


def our_layer(name, features, length):
    linear = attention.parse(f"performer(width={features // HEAD_DIM})")
    layer = LinearSelfAttention(DIM, HEADS, causal=True, linear=linear)
    layer.feature_map = linear.feature_map(HEAD_DIM, torch.Generator())
    scheme, size = scheme_and_size(name, features, length)
    (found,) = positions.build_layers(scheme, size, lambda name: torch.Generator())
    if found is not None:
        layer.set_positions(found, positions.PositionIds())
    return layer


def our_core(name, features, length):
    scheme, size = scheme_and_size(name, features, length)
    query_key_map = scheme.query_key_map(size, layer=0)
    powers = None if query_key_map is None else query_key_map.powers(1)
    log_decay = scheme.log_decay(size)
    return lambda q, k, v: chunked(q, k, v, powers=powers, log_decay=log_decay)[0]


def fast_transformers_core(q, k, v):
    from fast_transformers.causal_product import causal_dot_product

    total = (q * k.cumsum(2)).sum(-1, keepdim=True)
    return causal_dot_product(q, k, v) / (total + 1e-6)


def core_call(features, name, length):
    shape = (BATCH, HEADS, length)
    wide = HEAD_DIM if name == "sdpa" else features
    q, k = (torch.rand(*shape, wide).requires_grad_() for _ in range(2))
    v = torch.randn(*shape, HEAD_DIM).requires_grad_()
    if name in OURS:
        attend = our_core(name, features, length)
    elif name == "sdpa":
        attend = functools.partial(F.scaled_dot_product_attention, is_causal=True)
    elif name == "fast-transformers":
        attend = fast_transformers_core
    else:
        from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

        attend = causal_linear_attention_noncuda
    direction = torch.randn_like(v)

    def call():
        q.grad = k.grad = v.grad = None
        attend(q, k, v).backward(direction)

    return call


def layer_call(features, name, length):
    if name in OURS or name == "sdpa":
        softmax = functools.partial(SelfAttention, DIM, HEADS, causal=True)
        layer = softmax() if name == "sdpa" else our_layer(name, features, length)
        x = torch.randn(length, BATCH, DIM, requires_grad=True)
        attend = lambda: layer(x, need_weights=False)[0]  # noqa: E731
    elif name == "fast-transformers":
        from fast_transformers.attention import AttentionLayer, CausalLinearAttention
        from fast_transformers.masking import LengthMask, TriangularCausalMask

        layer = AttentionLayer(
            CausalLinearAttention(DIM), DIM, HEADS, d_keys=features, d_values=HEAD_DIM
        )
        x = torch.randn(BATCH, length, DIM, requires_grad=True)
        masks = TriangularCausalMask(length), LengthMask(torch.full((BATCH,), length))
        attend = lambda: layer(x, x, x, masks[0], masks[1], masks[1])  # noqa: E731
    else:
        from performer_pytorch import SelfAttention as Performer

        layer = Performer(
            DIM, causal=True, heads=HEADS, nb_features=features, generalized_attention=True
        )
        x = torch.randn(BATCH, length, DIM, requires_grad=True)
        attend = functools.partial(layer, x)
    direction = torch.randn_like(x)

    def call():
        layer.zero_grad()
        x.grad = None
        attend().backward(direction)

    return call


def decode_call(features, name, length):
    rows = BATCH * BEAM
    x = torch.randn(1, rows, DIM)
    if name == "fast-transformers":
        from fast_transformers.recurrent.attention import (
            RecurrentAttentionLayer,
            RecurrentLinearAttention,
        )

        layer = RecurrentAttentionLayer(
            RecurrentLinearAttention(DIM), DIM, HEADS, d_keys=features, d_values=HEAD_DIM
        ).eval()
        state = [
            torch.rand(rows, HEADS, features, HEAD_DIM),
            torch.rand(rows, HEADS, features),
        ]
        attend = lambda: layer(x[0], x[0], x[0], state=state)  # noqa: E731
    elif name in OURS:
        layer = our_layer(name, features, length).eval()
        held = {
            "values": torch.rand(rows, HEADS, features, HEAD_DIM),
            "normaliser": torch.rand(rows, HEADS, features),
            "count": torch.full((rows,), length),
        }
        attend = functools.partial(_next_token, layer, x, held)
    else:
        layer = SelfAttention(DIM, HEADS, causal=True).eval()
        held = {
            "prev_key": torch.randn(rows, HEADS, length, HEAD_DIM),
            "prev_value": torch.randn(rows, HEADS, length, HEAD_DIM),
            "prev_key_padding_mask": None,
        }
        attend = functools.partial(_next_token, layer, x, held)
    return torch.no_grad()(attend)


def _next_token(layer, x, held):
    state = {}
    layer._set_input_buffer(state, dict(held))
    layer(x, incremental_state=state, need_weights=False)


CALLS = {"core": core_call, "layer": layer_call, "decode": decode_call}


def serves(part, features, name, length):
    if name == "performer-pytorch":
        # it keeps the state before every token, and has no decoding
        states = 4 * BATCH * HEADS * length * features * HEAD_DIM
        return part != "decode" and states <= MOST_STATES
    return True


def measure(names, lengths, all_features, repeats):
    """Rows of all figures; memory first, for a fork has no threads of its parent."""
    cases = [
        (
            part,
            length,
            features,
            [
                name
                for name in names
                if serves(part, features, name, length)
                and (name != "sdpa" or features == all_features[0])
            ],
        )
        for part in PARTS
        for length in lengths
        for features in all_features
    ]
    peaks, rows = {}, []
    for part, length, features, served in cases:
        print(f"memory: {part}, {length} tokens, {features} features", file=sys.stderr)
        make = functools.partial(CALLS[part], features)
        for name in served:
            peak = None if part == "decode" else peak_mib(make, name, length)
            peaks[part, length, features, name] = peak
    for part, length, features, served in cases:
        print(f"time: {part}, {length} tokens, {features} features", file=sys.stderr)
        calls = {name: CALLS[part](features, name, length) for name in served}
        ms = medians(calls, 20 * repeats if part == "decode" else repeats)
        rows += [
            {
                "implementation": name,
                "length": length,
                "features": None if name == "sdpa" else features,
                "part": part,
                "ms": ms[name],
                "peak_mib": peaks[part, length, features, name],
            }
            for name in served
        ]
    return rows


def show(rows, names, lengths, all_features):
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"pe-fairseq {pe_fairseq.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, float32, batch {BATCH}, {HEADS} heads of "
        f"{HEAD_DIM}"
    )
    for part, title in PARTS.items():
        for what, unit in (("ms", "ms"), ("peak_mib", "peak memory, MiB")):
            for features in all_features:
                of_part = {
                    (row["implementation"], row["length"]): row[what]
                    for row in rows
                    if row["part"] == part and row["features"] in (None, features)
                }
                if None in of_part.values():
                    continue
                table = Table(title=f"{title}, {features} features: {unit}")
                table.add_column("implementation")
                for length in lengths:
                    table.add_column(f"{length:,}", justify="right")
                for name in names:
                    values = (of_part.get((name, length)) for length in lengths)
                    table.add_row(name, *("-" if x is None else f"{x:,.2f}" for x in values))
                console.print(table)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    installed = [n for n in IMPLEMENTATIONS if importlib.util.find_spec(PEERS.get(n, "torch"))]
    parser.add_argument(
        "--implementations",
        default=",".join(installed),
        metavar="NAME,…",
        help=f"of {', '.join(IMPLEMENTATIONS)}; all that are installed",
    )
    parser.add_argument("--lengths", default=LENGTHS, metavar="N,…", help=LENGTHS)
    parser.add_argument(
        "--features",
        default=FEATURES,
        metavar="M,…",
        help=f"multiples of {HEAD_DIM}; {FEATURES}",
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    names = options.implementations.split(",")
    lengths, features = numbers(options.lengths), numbers(options.features)
    for name in names:
        if name not in installed:
            known = "is not installed" if name in IMPLEMENTATIONS else "does not exist"
            parser.error(f"--implementations {name} {known}; there are: {', '.join(installed)}")
    for m in features:
        if m < 1 or m % HEAD_DIM:
            parser.error(f"--features {m} is no multiple of the {HEAD_DIM} of a head")
    memory.keep()
    rows = measure(names, lengths, features, options.repeats)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    show(rows, names, lengths, features)


if __name__ == "__main__":
    main()
