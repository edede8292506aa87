"""What a trained language model does with other position ids: strided and shifted ones.

The n-th token of a window gets the position offset + stride · n. A stride mixes wider spacing
with leaving the trained range, so the window for stride s is 1/s of the training length,
where all ids stay in the range, and the row's control reads the same windows with stride 1.
For offsets the window is half the training length: an offset of the other half stays in the
range, and larger ones leave it. A scheme that is shift-invariant has equal numbers there.

This changes ids at test time alone. The skip-position attack of "What Do Position Embeddings
Learn?" trains with a stride: fairseq-train --decoder-position-stride 4.
"""

import sys

from rich.console import Console
from rich.table import Table

from ..compat import memory
from ..errors import UserError, one_line_errors
from ..models.decoder import PositionDecoder
from ..positions import PositionIds
from . import command, results, text, trained, windows

MEASURE = "position-stride"


def main(arguments=None):
    """``eval_position_stride.py CHECKPOINT DATA``; exits with 1 and one line on an error."""
    parser = command.parser(__doc__)
    parser.add_argument(
        "--strides",
        type=command.numbers(minimum=1),
        default=[1, 2, 4, 8],
        metavar="N,N,…",
        help="strides of the position ids (1,2,4,8)",
    )
    parser.add_argument(
        "--offsets",
        type=command.numbers(minimum=0),
        metavar="N,N,…",
        help="position ids of the first token (half the training length and 8 times it)",
    )
    parser.add_argument(
        "--window",
        type=command.positive,
        metavar="N",
        help="one window length for all rows, whether or not the ids leave the trained range",
    )
    with one_line_errors():
        options = parser.parse_args(arguments)
        memory.keep()
        run(options)


def run(options):
    """Measure each pair of ids and control, print a table."""
    file = results.Results(options.results_path)
    model = trained.load(
        options.checkpoint,
        options.data,
        options.model_overrides,
        options.precision,
        options.cpu,
    )
    if not isinstance(model.model.decoder, PositionDecoder):
        raise UserError(
            "the ids of a stock model cannot be changed; make it one of ours with "
            f"pe-fairseq convert {options.checkpoint} NEW.pt"
        )
    source = text.read(options.data, options.gen_subset, model.task.source_dictionary)

    def measure(ids, window):
        return _measure(model, source, ids, window, options, file)

    rows = []
    for ids, window in _settings(model.train_length, options):
        if window < 1:
            raise UserError(
                f"stride {ids.stride} leaves no window of the {model.train_length} tokens of "
                "training; give smaller --strides, or a --window"
            )
        rows.append((ids, measure(ids, window), measure(PositionIds(), window)))
    _show(model, rows)


def _settings(train_length, options):
    """Pairs of position ids and window length."""
    offsets = options.offsets
    if offsets is None:
        offsets = [train_length // 2, 8 * train_length]
    for stride in options.strides:
        yield PositionIds(stride=stride), options.window or train_length // stride
    for offset in offsets:
        yield PositionIds(offset=offset), options.window or max(1, train_length // 2)


def _measure(model, source, ids, window, options, file):
    stride = windows.default_stride(windows.SLIDING, window)
    signature = {
        "measure": MEASURE,
        "mode": windows.SLIDING,
        "position_stride": ids.stride,
        "position_offset": ids.offset,
        "window": window,
        "stride": stride,
        **model.about,
        "data": source.data,
    }
    result = file.find(signature)
    if result is None:
        model.model.decoder.set_position_ids(ids)
        result = {"signature": signature, **_numbers(model, source, ids, window, options)}
        file.add(result)
    return result


def _numbers(model, source, ids, window, options):
    refusal = model.refusal(window)
    if refusal is not None:
        return {"undefined": refusal}
    stride = windows.default_stride(windows.SLIDING, window)
    plan = windows.plan(source.documents, window, stride)
    label = f"{model.scheme}, stride {ids.stride}, offset {ids.offset}, window {window}"
    return command.measure(model, source, plan, window, options.max_tokens, label)[0]


def _show(model, rows):
    per = "word" if rows[0][2].get("words") else "token"
    table = Table(
        title=f"{model.scheme}, trained at {model.train_length} tokens: ppl per {per}"
    )
    for heading in (
        "stride",
        "offset",
        "window",
        "ids",
        "perplexity",
        "stride-1 control",
        "ratio",
    ):
        table.add_column(heading, justify="right")
    for ids, changed, control in rows:
        window = changed["signature"]["window"]
        last = ids.last(window)
        row = [f"{ids.stride}", f"{ids.offset:,}", f"{window:,}", f"{ids.offset:,}–{last:,}"]
        values = [result.get(f"perplexity_per_{per}") for result in (changed, control)]
        row += [f"{value:.2f}" if value else "undefined" for value in values]
        row.append(f"{values[0] / values[1]:.3f}" if all(values) else "")
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    undefined = [r["undefined"] for row in rows for r in row[1:] if "undefined" in r]
    for reason in undefined[:1]:
        print(f"undefined: {reason}")
    varying = ("position_stride", "position_offset", "window", "stride")
    first = rows[0][1]["signature"]
    print(results.short({k: v for k, v in first.items() if k not in varying}))
