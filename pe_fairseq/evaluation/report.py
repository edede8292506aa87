"""Results of eval_extrapolation.py on several models: one table, one CSV file, one plot.

Writes extrapolation.md, extrapolation.csv and extrapolation.png, and prints the table. The
results must be of one text, one mode, one training length and one precision, or they do not
compare and are refused; where models differ in size, updates or seed, the table says so. Of a
result that was measured twice the last one counts.
"""

import argparse
import csv
import io
import os
import sys
from pathlib import Path

from cycler import cycler
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UserError, one_line_errors
from . import extrapolation, results

# of a plot with more, the legend would hide the lines
LINES_BESIDE_LEGEND = 6

EQUAL = ("mode", "train_length", "precision", "data")


def main(arguments=None):
    """``report_extrapolation.py RESULTS… --out FOLDER``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "results", nargs="+", metavar="RESULTS", help="files that --results-path has written"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where to write")
    with one_line_errors():
        options = parser.parse_args(arguments)
        lines = [line for path in options.results for line in results.read(path)]
        try:
            write(lines, Path(options.out))
        except KeyError as error:
            raise UserError(
                f"a result has no {error}: another version wrote it; measure it again"
            ) from error


def write(lines, folder):
    """Write and print the report of results ``lines``.

    Raises:
        UserError: there is none, or they do not compare.
    """
    rows = _rows(lines)
    windows = _windows(rows)
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "extrapolation.csv", _csv(rows).encode())
    _replace(folder / "extrapolation.md", _markdown(rows, windows).encode())
    _replace(folder / "extrapolation.png", _plot(rows, windows))
    _show(rows, windows)
    print(f"wrote {folder}/extrapolation.md, .csv and .png")


def _rows(lines):
    """Map each model's label to its results by window."""
    wanted = [line for line in lines if line["signature"]["measure"] == extrapolation.MEASURE]
    if not wanted:
        raise UserError("the files hold no result of eval_extrapolation.py")
    for name in EQUAL:
        found = sorted({results.short({name: line["signature"][name]}) for line in wanted})
        if len(found) > 1:
            raise UserError(f"the results do not compare: {' and '.join(found)}")
    labels = [_label(line, wanted) for line in wanted]
    checkpoints = {}
    for label, line in zip(labels, wanted):
        checkpoints.setdefault(label, set()).add(line["signature"]["checkpoint"])
    rows = {}
    for label, line in zip(labels, wanted):
        signature = line["signature"]
        if len(checkpoints[label]) > 1:
            label += f", {results.short({'checkpoint': signature['checkpoint']})}"
        rows.setdefault(label, {})[signature["window"]] = line
    return rows


def _label(line, lines):
    """The scheme; what of the ids is changed; and in what else the models differ."""
    signature = line["signature"]
    label = signature["scheme"]
    changed = {
        name: signature[name]
        for name, usual in (("position_stride", 1), ("position_offset", 0))
        if signature.get(name, usual) != usual
    }
    changed.update(
        (name, value)
        for name, value in signature["overrides"].items()
        if name.removeprefix("decoder_") not in changed
    )
    if changed:
        label += f" [{', '.join(f'{name}={value}' for name, value in changed.items())}]"
    for name in ("attention", "architecture", "size", "updates", "seed"):
        if len({_of(other["signature"], name) for other in lines}) > 1:
            label += f", {results.short({name: _of(signature, name)})}"
    return label


def _of(signature, name):
    # results that do not name the attention are older than linear attention
    return signature.get(name, "softmax") if name == "attention" else signature[name]


def _windows(rows):
    """Map each window, shortest first, to the stride that all rows have there."""
    strides = {}
    for row in rows.values():
        for window, line in row.items():
            strides.setdefault(window, set()).add(line["signature"]["stride"])
    for window, found in strides.items():
        if len(found) > 1:
            raise UserError(
                f"the results do not compare: at window {window} the stride is "
                f"{' and '.join(map(str, sorted(found)))}"
            )
    return {window: strides[window].pop() for window in sorted(strides)}


def _units(rows):
    """What perplexities are per: tokens, and words where the data says how many there are."""
    lines = [line for row in rows.values() for line in row.values() if "undefined" not in line]
    return (
        ("token", "word")
        if lines and all(line["words_and_lines"] for line in lines)
        else ("token",)
    )


def _cells(row, windows, unit):
    for window in windows:
        line = row.get(window)
        if line is None:
            yield ""
        elif "undefined" in line:
            yield "undefined"
        else:
            yield f"{line[f'perplexity_per_{unit}']:.2f}"


def _caption(rows, windows):
    signature = next(iter(next(iter(rows.values())).values()))["signature"]
    strides = ", ".join(map(str, windows.values()))
    mode = (
        f"sliding windows, stride {strides}"
        if signature["mode"] == "sliding"
        else "blocks that do not overlap"
    )
    data = signature["data"]
    return (
        f"Perplexity of {data['corpus'] or 'the'} {data['split']} by window length; trained "
        f"at {signature['train_length']} tokens; {mode}."
    )


def _markdown(rows, windows):
    text = [_caption(rows, windows)]
    for unit in _units(rows):
        heading = [f"perplexity per {unit}", *(f"{window:,}" for window in windows)]
        text += ["", "| " + " | ".join(heading) + " |", "|---|" + "---:|" * len(windows)]
        for label, row in rows.items():
            text.append("| " + " | ".join([f"`{label}`", *_cells(row, windows, unit)]) + " |")
    text += [f"\nUndefined for {reason}" for reason in _reasons(rows)]
    text.append("\nSignatures:\n")
    text += [f"- {results.short(_of_model(row))}" for row in rows.values()]
    return "\n".join(text) + "\n"


def _of_model(row):
    signature = next(iter(row.values()))["signature"]
    return {k: v for k, v in signature.items() if k not in ("window", "stride")}


def _reasons(rows):
    """Of each model that is undefined somewhere, why at the shortest such window."""
    for label, row in rows.items():
        reasons = [
            row[window]["undefined"] for window in sorted(row) if "undefined" in row[window]
        ]
        if reasons:
            yield f"{label}: {reasons[0]}"


def _csv(rows):
    file = io.StringIO()
    numbers = (
        "perplexity_per_word",
        "perplexity_per_token",
        "tokens",
        "words_and_lines",
        "nats",
        "tokens_in_full_windows",
    )
    writer = csv.writer(file)
    writer.writerow(["model", "window", "stride", *numbers, "undefined", "signature"])
    for label, row in rows.items():
        for window in sorted(row):
            line = row[window]
            cells = [line.get(name, "") for name in numbers]
            cells += [line.get("undefined", ""), results.short(line["signature"])]
            writer.writerow([label, window, line["signature"]["stride"], *cells])
    return file.getvalue()


def _plot(rows, windows):
    train_length = next(iter(next(iter(rows.values())).values()))["signature"]["train_length"]
    lines = [line for row in rows.values() for line in row.values() if "nats" in line]
    width = max((line["loss_by_position"]["width"] for line in lines), default=1)
    beside = len(rows) <= LINES_BESIDE_LEGEND
    figure = Figure(figsize=(11 if beside else 15, 4.2), layout="constrained")
    by_window, by_position = figure.subplots(1, 2)
    for axes in (by_window, by_position):
        axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * cycler(color=TABLEAU_COLORS))
    for label, row in rows.items():
        known = [window for window in windows if "nats" in row.get(window, ())]
        values = [row[window]["perplexity_per_token"] for window in known]
        undefined = any("undefined" in line for line in row.values())
        shown = f"{label} (undefined beyond)" if undefined else label
        by_window.plot(known, values, marker="o", label=shown)
        if known:
            by_position.plot(*_by_position(row[known[-1]], width), label=label)
    for axes in (by_window, by_position):
        axes.axvline(train_length, color="grey", linestyle=":")
        axes.grid(alpha=0.3)
    by_window.set_xscale("log", base=2)
    by_window.set_xticks(list(windows), [f"{window:,}" for window in windows])
    by_window.set_yscale("log")
    for set_formatter in (
        by_window.yaxis.set_major_formatter,
        by_window.yaxis.set_minor_formatter,
    ):
        set_formatter(ScalarFormatter(useOffset=False))
    by_window.set_xlabel("window length (tokens); dotted: training length")
    by_window.set_ylabel("perplexity per token")
    if beside:
        by_window.legend()
    else:
        figure.legend(*by_window.get_legend_handles_labels(), loc="outside right center")
    by_position.set_xlabel("position in the longest window")
    by_position.set_ylabel("loss per token (nats)")
    figure.suptitle(_caption(rows, windows), fontsize="small")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _by_position(line, width):
    """Positions and losses of ``line`` in groups of about ``width`` positions."""
    found = line["loss_by_position"]
    merged = max(1, round(width / found["width"])) if found["width"] else 1
    groups = [found["nats"][i : i + merged] for i in range(0, len(found["nats"]), merged)]
    middles = [(i + 0.5) * merged * found["width"] for i in range(len(groups))]
    return middles, [sum(group) / len(group) for group in groups]


def _show(rows, windows):
    print(_caption(rows, windows))
    for unit in _units(rows):
        table = Table()
        table.add_column(f"perplexity per {unit}")
        for window in windows:
            table.add_column(f"{window:,}", justify="right")
        for label, row in rows.items():
            table.add_row(Text(label), *_cells(row, windows, unit))
        Console(width=None if sys.stdout.isatty() else 100).print(table)
    for reason in _reasons(rows):
        print(f"undefined for {reason}")


def _replace(path, content):
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)
