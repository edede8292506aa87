"""Progress on standard error: a bar or a spinner in a terminal, else one plain line."""

import contextlib
import sys

from rich.console import Console
from rich.progress import track


def each(items, description, total):
    """Iterate over ``items``, of which there are ``total``."""
    console = Console(stderr=True)
    if console.is_terminal:
        return track(items, description, total=total, console=console, transient=True)
    print(description, file=sys.stderr, flush=True)
    return items


def during(description):
    """A context in which something of unknown length runs."""
    console = Console(stderr=True)
    if console.is_terminal:
        return console.status(description)
    print(description, file=sys.stderr, flush=True)
    return contextlib.nullcontext()
