"""What the evaluation commands share: their options, their progress, their numbers."""

import argparse
import math
import time
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from ..compat.overrides import parse_overrides
from . import scoring
from .text import Text
from .trained import PRECISIONS, Trained

# fairseq-eval-lm's default of 36,000 needs tens of gigabytes for a large vocabulary
MAX_TOKENS = 4096


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
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def measure(trained: Trained, text: Text, plan, length: int, max_tokens: int, label: str):
    """Score ``plan``, windows of up to ``length`` tokens; returns numbers and losses.

    Perplexities are exp of nats per token, and of nats per word and line end.
    """
    start = time.monotonic()
    with progress(label, len(text.tokens)) as advance:
        losses = scoring.score(
            trained.model,
            text.tokens,
            plan,
            length,
            first_input=trained.task.source_dictionary.eos(),
            pad=trained.task.source_dictionary.pad(),
            max_tokens=max_tokens,
            advance=advance,
        )
    nats = losses.of_token.sum().item()
    return {
        "tokens": len(text.tokens),
        "words": text.words,
        "nats": nats,
        "perplexity_per_token": math.exp(nats / len(text.tokens)),
        "perplexity_per_word": math.exp(nats / text.words) if text.words else None,
        "tokens_in_full_windows": losses.in_full_window,
        "seconds": round(time.monotonic() - start, 2),
    }, losses
