"""Perplexity of a trained language model at lengths beyond the one it was trained with.

At every length the same tokens are predicted: each token of the split once, from a window of
so many tokens inside its document. By default the window slides by half its length, so that
a token sees at least half a window (where its document has so much). --mode blocks cuts the
text into blocks that do not overlap, whose first tokens see next to nothing.

Perplexity per word is exp(nats / (words + line ends)), counted before the text was cut into
pieces; the manifest of the data says how many. A length at which the scheme has no meaning,
such as one beyond a learned table, is reported as undefined.
"""

import sys

from rich.console import Console
from rich.table import Table

from ..compat import memory
from ..errors import one_line_errors
from . import command, results, text, trained, windows

MEASURE = "extrapolation"

# Loss by position is kept as the means of so many groups of neighbours at most.
GROUPS = 64


def main(arguments=None):
    """``eval_extrapolation.py CHECKPOINT DATA``; exits with 1 and one line on an error."""
    parser = command.parser(__doc__)
    parser.add_argument(
        "--lengths",
        type=command.numbers(minimum=1),
        metavar="N,N,…",
        help="window lengths in tokens (1, 2, 4 and 8 times the training length)",
    )
    parser.add_argument(
        "--mode",
        choices=windows.MODES,
        default=windows.SLIDING,
        help="windows that overlap, or blocks that do not (sliding)",
    )
    parser.add_argument(
        "--stride",
        type=command.positive,
        metavar="N",
        help="tokens that a sliding window moves on, and that are predicted in it (half of it)",
    )
    with one_line_errors():
        options = parser.parse_args(arguments)
        if options.mode == windows.BLOCKS and options.stride is not None:
            parser.error(
                "--stride has no meaning with --mode blocks: a block moves by its length"
            )
        memory.keep()
        run(options)


def run(options):
    """Measure each length, print a table."""
    file = results.Results(options.results_path)
    model = trained.load(
        options.checkpoint,
        options.data,
        options.model_overrides,
        options.precision,
        options.cpu,
    )
    source = text.read(options.data, options.gen_subset, model.task.source_dictionary)
    lengths = options.lengths or [factor * model.train_length for factor in (1, 2, 4, 8)]
    measured = []
    for length in lengths:
        stride = options.stride or windows.default_stride(options.mode, length)
        signature = {
            "measure": MEASURE,
            "mode": options.mode,
            "window": length,
            "stride": stride,
            **model.about,
            "data": source.data,
        }
        result = file.find(signature)
        if result is None:
            result = {"signature": signature, **_measure(model, source, signature, options)}
            file.add(result)
        measured.append(result)
    _show(measured)


def _measure(model, source, signature, options):
    length = signature["window"]
    plan = windows.plan(source.documents, length, signature["stride"])
    refusal = model.refusal(length)
    if refusal is not None:
        return {"undefined": refusal}
    numbers, losses = command.measure(
        model, source, plan, length, options.max_tokens, f"{model.scheme}, window {length}"
    )
    return {**numbers, "loss_by_position": _group(losses)}


def _group(losses):
    """Losses by position as means of neighbours: ``width`` positions each, the last fewer."""
    width = -(-len(losses.of_position) // GROUPS)
    groups = losses.of_position.split(width) if width else ()
    return {
        "windows": losses.disjoint,
        "width": width,
        "nats": [group.mean().item() for group in groups],
    }


def _show(measured):
    first = measured[0]["signature"]
    table = Table(title=f"{first['scheme']}, trained at {first['train_length']} tokens")
    for heading in (
        "window",
        "stride",
        "ppl per token",
        "ppl per word",
        "tokens scored",
        "in full windows",
    ):
        table.add_column(heading, justify="right")
    for result in measured:
        signature = result["signature"]
        row = [f"{signature['window']:,}", f"{signature['stride']:,}"]
        if "undefined" in result:
            row += ["undefined", "undefined"]
        else:
            word = result["perplexity_per_word"]
            row += [
                f"{result['perplexity_per_token']:.2f}",
                f"{word:.2f}" if word else "no manifest",
                f"{result['tokens']:,}",
                f"{result['tokens_in_full_windows'] / result['tokens']:.0%}",
            ]
        table.add_row(*row)
    # of a pipe the width is not known
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    for reason in [result["undefined"] for result in measured if "undefined" in result][:1]:
        print(f"undefined: {reason}")
    of_all = {k: v for k, v in first.items() if k not in ("window", "stride")}
    print(results.short(of_all))
