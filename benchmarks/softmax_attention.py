"""Softmax attention with every position scheme against stock fairseq's module, in one run.

    OMP_NUM_THREADS=2 python benchmarks/softmax_attention.py --lengths 1024,2048

Three parts: ``module``, self-attention with its projections, forward and backward; ``core``,
the same from queries, keys and values to the output; ``decode``, 16 tokens one by one after
a prefix of that length, for two sentences with a beam of 5. Causal, float32, batch 2, 8 heads
of 64, dropout 0. Stock's core is the call that torch makes inside stock's module.

A time is the median of ``--repeats`` rounds in which all schemes and stock take turns, and a
ratio is our time over stock's: less than 1 is faster than stock. Peak memory is what a
process of its own takes beyond what it held when module and input were made (Linux alone).
"""

import argparse
import functools
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from measure import medians, peak_mib
from rich.console import Console
from rich.table import Table

import pe_fairseq
from pe_fairseq import positions
from pe_fairseq.attention import softmax_attention
from pe_fairseq.models.self_attention import SelfAttention

BATCH, HEADS, HEAD_DIM = 2, 8, 64
BEAM, TOKENS = 5, 16
DIM = HEADS * HEAD_DIM
LENGTHS = "128,256,512,1024,2048,4096"
PARTS = {
    "module": "module with projections, forward + backward",
    "core": "attention core, forward + backward",
    "decode": f"decoding, {TOKENS} tokens after a prefix",
}
STOCK = "stock"


def build(scheme, length):
    """An attention module in training mode: ours with ``scheme``, or stock's."""
    torch.manual_seed(1)
    if scheme == STOCK:
        return MultiheadAttention(DIM, HEADS, self_attention=True)
    module = SelfAttention(DIM, HEADS, causal=True)
    size = positions.ModelSize(DIM, max_positions=length, heads=HEADS)
    (layer,) = positions.build_layers(
        positions.parse(scheme), size, lambda name: torch.Generator().manual_seed(1)
    )
    if layer is not None:
        module.set_positions(layer, positions.PositionIds())
    return module


def causal_mask(length):
    return torch.full((length, length), float("-inf")).triu(1)


def module_call(scheme, length):
    attention = build(scheme, length)
    x = torch.randn(length, BATCH, DIM, requires_grad=True)
    mask = causal_mask(length) if scheme == STOCK else None

    def call():
        output, _ = attention(x, x, x, attn_mask=mask, need_weights=False)
        output.backward(torch.ones_like(output))

    return call


def core_call(scheme, length):
    shape = (length, BATCH, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape).permute(1, 2, 0, 3).requires_grad_() for _ in range(3))
    if scheme == STOCK:
        attend = functools.partial(
            F.scaled_dot_product_attention, q, k, v, attn_mask=causal_mask(length)
        )
    else:
        attend = functools.partial(our_core, build(scheme, length), q, k, v)

    def call():
        output = attend()
        output.backward(torch.ones_like(output))

    return call


def our_core(module, q, k, v):
    turned_q, turned_k = q, k
    if module.positions is not None and module.positions.query_key_map is not None:
        query_key_map = module.positions.query_key_map
        prepared = query_key_map.prepare(torch.arange(q.size(2))[None])
        turned_q, turned_k = query_key_map(q, k, prepared)
    return softmax_attention(turned_q, turned_k, v, module.positions, q, causal=True)[0]


def decode_call(scheme, length):
    attention = build(scheme, length + TOKENS).eval()
    rows = BATCH * BEAM
    x = torch.randn(1, rows, DIM)
    held = {
        "prev_key": torch.randn(rows, HEADS, length, HEAD_DIM),
        "prev_value": torch.randn(rows, HEADS, length, HEAD_DIM),
        "prev_key_padding_mask": None,
    }

    @torch.no_grad()
    def call():
        state = {}
        attention._set_input_buffer(state, dict(held))
        for _ in range(TOKENS):
            attention(x, x, x, incremental_state=state, need_weights=False)

    return call


CALLS = {"module": module_call, "core": core_call, "decode": decode_call}


def measure(schemes, lengths, repeats):
    """Rows of all figures. Memory first: a fork has no threads of a parent that used them."""
    names = [STOCK, *schemes]
    peaks = {}
    for part in PARTS:
        for length in lengths:
            print(f"memory: {part}, {length} tokens", file=sys.stderr)
            for name in names:
                peaks[part, length, name] = peak_mib(CALLS[part], name, length)
    rows = []
    for part in PARTS:
        for length in lengths:
            print(f"time: {part}, {length} tokens", file=sys.stderr)
            ms = medians({name: CALLS[part](name, length) for name in names}, repeats)
            rows += [
                {
                    "scheme": scheme,
                    "length": length,
                    "part": part,
                    "ms": ms[scheme],
                    "stock_ms": ms[STOCK],
                    "ratio": ms[scheme] / ms[STOCK],
                    "peak_mib": peaks[part, length, scheme],
                    "stock_peak_mib": peaks[part, length, STOCK],
                }
                for scheme in schemes
            ]
    return rows


def show(rows, schemes, lengths):
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"pe-fairseq {pe_fairseq.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, float32, batch {BATCH}, {HEADS} heads of "
        f"{HEAD_DIM}, dropout 0"
    )
    found = {(row["part"], row["scheme"], row["length"]): row for row in rows}
    for part, title in PARTS.items():
        of_stock = [found[part, schemes[0], length] for length in lengths]
        for what, unit in (("ratio", "ms"), ("peak_mib", "MiB")):
            if what == "peak_mib" and (part == "decode" or of_stock[0][what] is None):
                continue
            said = "time over stock's" if what == "ratio" else "peak memory, MiB"
            table = Table(title=f"{title}: {said}")
            table.add_column("scheme")
            for length in lengths:
                table.add_column(f"{length:,}", justify="right")
            stock = "stock_ms" if what == "ratio" else "stock_peak_mib"
            table.add_row(f"stock, {unit}", *(f"{row[stock]:,.1f}" for row in of_stock))
            for scheme in schemes:
                values = (found[part, scheme, length][what] for length in lengths)
                text = "{:.2f}" if what == "ratio" else "{:,.0f}"
                table.add_row(scheme, *map(text.format, values))
            console.print(table)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default=LENGTHS, metavar="N,…", help=LENGTHS)
    parser.add_argument(
        "--schemes",
        default=",".join(n for n, scheme in positions.SCHEMES.items() if _serves(scheme())),
        metavar="SPEC,…",
        help="every registered scheme that serves such lengths; a spec with options has its "
        "commas in parentheses",
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    lengths = [int(length) for length in options.lengths.split(",")]
    schemes = split_specs(options.schemes)
    with pe_fairseq.errors.one_line_errors():
        for scheme in schemes:
            positions.parse(scheme)
    rows = measure(schemes, lengths, options.repeats)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    show(rows, schemes, lengths)


def _serves(scheme):
    """True where softmax attention takes it, at all of ``LENGTHS``."""
    longest = int(LENGTHS.rpartition(",")[2]) + TOKENS
    return not scheme.decays and scheme.refusal(longest) is None


def split_specs(text):
    """Split at the commas that stand in no parentheses."""
    specs, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            specs.append("")
        else:
            specs[-1] += letter
    return specs


if __name__ == "__main__":
    main()
