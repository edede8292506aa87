"""What the evaluation commands share: options, progress, measuring, and the printed table."""

import argparse
import math
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ..compat import memory
from ..compat.overrides import parse_overrides
from ..errors import UserError
from ..positions.ids import LARGEST
from . import scoring, text, trained, windows
from .results import Results, short
from .text import Text
from .trained import PRECISIONS, Trained

# fairseq-eval-lm's default of 36,000 needs tens of gigabytes for a large vocabulary
MAX_TOKENS = 4096

# Loss by position is kept as the means of so many groups of neighbours at most.
GROUPS = 64


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every evaluation has, under fairseq's names."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("checkpoint", metavar="CHECKPOINT", help="a trained language model")
    made.add_argument(
        "data", metavar="DATA", help="folder of binarised text, with a manifest if it has one"
    )
    made.add_argument(
        "--gen-subset", default="test", metavar="SPLIT", help="split to score (test)"
    )
    made.add_argument(
        "--max-tokens",
        type=positive,
        default=MAX_TOKENS,
        metavar="N",
        help=f"tokens in one pass, or one window where that is longer ({MAX_TOKENS})",
    )
    made.add_argument(
        "--model-overrides",
        type=parse_overrides,
        default={},
        metavar="DICT",
        help="config values to change, as in fairseq-eval-lm",
    )
    made.add_argument("--cpu", action="store_true", help="do not use a GPU")
    made.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of weights and activations (float32); losses are summed in float64",
    )
    made.add_argument(
        "--results-path",
        metavar="FILE",
        help="add each result to FILE, one line of JSON with its signature; what FILE holds "
        "already is not measured again",
    )
    return made


def positive(text):
    """An argparse type: a whole number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be 1 or more")
    return number


def numbers(minimum):
    """An argparse type: whole numbers of ``minimum`` or more joined by commas."""

    def parse(text):
        try:
            found = [int(word) for word in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"'{text}' is no list of whole numbers joined by commas"
            ) from None
        for number in found:
            if number < minimum:
                raise argparse.ArgumentTypeError(f"{number} must be {minimum} or more")
        return list(dict.fromkeys(found))

    return parse


@contextmanager
def progress(label: str, total: int):
    """A bar on standard error, where that is a terminal; yields the function to advance it."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@dataclass(frozen=True)
class Evaluation:
    """A model, the text that it is scored on, and the results so far."""

    model: Trained
    text: Text
    results: Results
    max_tokens: int

    @classmethod
    def of(cls, options):
        """What the command line asks for.

        Raises:
            UserError: what it names is not there or does not fit.
        """
        memory.keep()
        found = Results(options.results_path)
        model = trained.load(
            options.checkpoint,
            options.data,
            options.model_overrides,
            options.precision,
            options.cpu,
        )
        source = text.read(options.data, options.gen_subset, model.task.source_dictionary)
        return cls(model, source, found, options.max_tokens)

    def check(self, window, stride):
        """Raise UserError for a window that cannot be, before any is scored."""
        windows.plan([1], window, stride)
        if window >= LARGEST:
            raise UserError(
                f"a window of {window} tokens is too long; it must be below {LARGEST}"
            )

    def measure(self, measure, mode, window, stride, position_ids=None):
        """The result at one setting: from the file, or scored now and added to it.

        Args:
            measure: what the number is for.
            mode, window, stride: see ``windows``.
            position_ids: ids to set; by default the model keeps those of its config.

        Raises:
            UserError: the stride does not fit the window, or a loss is not finite.
        """
        decoder = self.model.model.decoder
        if position_ids is not None:
            decoder.set_position_ids(position_ids)
        signature = {
            "measure": measure,
            "mode": mode,
            "window": window,
            "stride": stride,
            **self.model.about,
            **trained.positions_of(decoder),
            "data": self.text.data,
        }
        plan = windows.plan(self.text.documents, window, stride)
        result = self.results.find(signature)
        if result is None:
            refusal = self.model.refusal(window)
            numbers = {"undefined": refusal} if refusal else self._score(plan, window)
            result = {"signature": signature, **numbers}
            self.results.add(result)
        return result

    def _score(self, plan, window):
        """Perplexities are exp of nats per token, and of nats per word and line end."""
        start = time.monotonic()
        words, tokens = self.text.words, len(self.text.tokens)
        dictionary = self.model.task.source_dictionary
        with progress(f"{self.model.scheme}, window {window}", tokens) as advance:
            losses = scoring.score(
                self.model.model,
                self.text.tokens,
                plan,
                window,
                first_input=dictionary.eos(),
                pad=dictionary.pad(),
                max_tokens=self.max_tokens,
                advance=advance,
            )
        nats = losses.of_token.sum().item()
        return {
            "tokens": tokens,
            "words_and_lines": words,
            "nats": nats,
            "perplexity_per_token": _perplexity(nats, tokens),
            "perplexity_per_word": _perplexity(nats, words) if words else None,
            "tokens_in_full_windows": losses.in_full_window,
            "loss_by_position": group(losses),
            "seconds": round(time.monotonic() - start, 2),
        }


def _perplexity(nats, count):
    try:
        return math.exp(nats / count)
    except OverflowError:
        raise UserError(
            f"{nats / count:g} nats for each of {count} are too many for a perplexity: the "
            "model is broken, or the words of the manifest are not those of the text"
        ) from None


def group(losses: scoring.Losses) -> dict:
    """Losses by position as means of neighbours: ``width`` positions each, the last fewer."""
    width = -(-len(losses.of_position) // GROUPS)
    groups = losses.of_position.split(width) if width else ()
    return {
        "windows": losses.disjoint,
        "width": width,
        "nats": [neighbours.mean().item() for neighbours in groups],
    }


def show(table: Table, measured, varying):
    """Print a table, why a result is undefined, and what the signatures have in common."""
    # of a pipe the width is not known
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    for reason in [line["undefined"] for line in measured if "undefined" in line][:1]:
        print(f"undefined: {reason}")
    first = measured[0]["signature"]
    print(short({key: value for key, value in first.items() if key not in varying}))
