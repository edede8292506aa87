"""Perplexity of a trained language model at lengths beyond the one it was trained with.

At every length the same tokens are predicted: each token of the split once, from a window of
so many tokens inside its document. By default the window slides by half its length, so that
a token sees at least half a window (where its document has so much). --mode blocks cuts the
text into blocks that do not overlap, whose first tokens see next to nothing.

Perplexity per word is exp(nats / (words + line ends)), counted before the text was cut into
pieces; the manifest of the data says how many. A length at which the scheme has no meaning,
such as one beyond a learned table, is reported as undefined.
"""

from rich.table import Table

from ..errors import one_line_errors
from . import command, windows

MEASURE = "extrapolation"


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
        _show([*measure(options)])


def measure(options):
    """The results at every length."""
    evaluation = command.Evaluation.of(options)
    train_length = evaluation.model.train_length
    lengths = options.lengths or [factor * train_length for factor in (1, 2, 4, 8)]
    settings = [
        (length, options.stride or windows.default_stride(options.mode, length))
        for length in lengths
    ]
    for length, stride in settings:
        evaluation.check(length, stride)
    for length, stride in settings:
        yield evaluation.measure(MEASURE, options.mode, length, stride)


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
    command.show(table, measured, varying=("window", "stride"))
