"""What a trained language model does with other position ids: strided and shifted ones.

The n-th token of a window gets the position offset + stride · n. A stride mixes wider spacing
with leaving the trained range, so the window for stride s is 1/s of the training length,
where all ids stay in the range, and the row's control reads the same windows with the ids of
training: 0, 1, 2, …, unless the model was trained with a stride, which is multiplied.
For offsets the window is half the training length: an offset of the other half stays in the
range, and larger ones leave it. A scheme that is shift-invariant has equal numbers there.

This changes ids at test time alone. The skip-position attack of "What Do Position Embeddings
Learn?" trains with a stride: fairseq-train --decoder-position-stride 4.
"""

from rich.table import Table

from ..errors import UserError, one_line_errors
from ..models.decoder import PositionDecoder
from ..positions import PositionIds
from . import command, windows

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
        _show([*measure(parser.parse_args(arguments))])


def measure(options):
    """Pairs of results: with the ids of a setting, and its control."""
    evaluation = command.Evaluation.of(options)
    model = evaluation.model
    if not isinstance(model.model.decoder, PositionDecoder):
        raise UserError(
            "the ids of a stock model cannot be changed; make it one of ours with "
            f"pe-fairseq convert {options.checkpoint} NEW.pt"
        )
    for key in ("decoder_position_stride", "decoder_position_offset"):
        if key in options.model_overrides:
            raise UserError(
                f"--model-overrides {key}: here --strides and --offsets say the ids"
            )
    own = model.model.decoder.position_ids
    settings = [*_settings(own, model.train_length, options)]
    for ids, window in settings:
        if window < 1:
            raise UserError(
                f"stride {ids.stride} leaves no window of the {model.train_length} tokens of "
                "training; give smaller --strides, or a --window"
            )
        evaluation.check(window, windows.default_stride(windows.SLIDING, window))
        ids.last(window)
    for ids, window in settings:
        stride = windows.default_stride(windows.SLIDING, window)
        yield tuple(
            evaluation.measure(MEASURE, windows.SLIDING, window, stride, each)
            for each in (ids, own)
        )


def _settings(own, train_length, options):
    """Pairs of position ids, which are those of training changed, and window length."""
    offsets = options.offsets
    if offsets is None:
        offsets = [own.stride * train_length // 2, 8 * own.stride * train_length]
    for stride in options.strides:
        ids = PositionIds(own.stride * stride, own.offset)
        yield ids, options.window or train_length // stride
    for offset in offsets:
        ids = PositionIds(own.stride, own.offset + offset)
        yield ids, options.window or max(1, train_length // 2)


def _show(pairs):
    first = pairs[0][0]["signature"]
    per = "word" if any(control.get("words_and_lines") for _, control in pairs) else "token"
    table = Table(
        title=f"{first['scheme']}, trained at {first['train_length']} tokens: ppl per {per}"
    )
    for heading in ("stride", "offset", "window", "ids", "perplexity", "control", "ratio"):
        table.add_column(heading, justify="right")
    for changed, control in pairs:
        signature = changed["signature"]
        stride, offset = signature["position_stride"], signature["position_offset"]
        window = signature["window"]
        last = PositionIds(stride, offset).last(window)
        row = [f"{stride}", f"{offset:,}", f"{window:,}", f"{offset:,}–{last:,}"]
        values = [result.get(f"perplexity_per_{per}") for result in (changed, control)]
        row += [f"{value:.2f}" if value else "undefined" for value in values]
        row.append(f"{values[0] / values[1]:.3f}" if all(values) else "")
        table.add_row(*row)
    varying = ("position_stride", "position_offset", "window", "stride")
    command.show(table, [result for pair in pairs for result in pair], varying)
