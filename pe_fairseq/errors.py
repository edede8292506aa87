"""Errors that a user can act on, printed as one line.

Anything wrong with what the user gave (a spec, a file, a flag) is raised as
``UserError``. Under a fairseq command it becomes one line on standard error
and exit status 1; the traceback is logged at debug level (``LOGLEVEL=DEBUG``).
"""

import contextlib
import difflib
import logging
import sys
from pathlib import Path

logger = logging.getLogger(__name__)


class UserError(Exception):
    """The input is at fault; the message names the bad value and what to do.

    Not a ValueError, which argparse would replace by a message of its own.
    """


def under_fairseq_command():
    """True where the running program is one of fairseq's commands."""
    program = Path(sys.argv[0])
    return program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"


def nearest(name, known):
    """Return ``" (did you mean 'x'?)"`` for the closest of ``known``, or ``""``."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


def describe(error):
    """One line for an error that the user can mend, None for any other.

    fairseq wraps what a model raises while a checkpoint loads in an Exception of
    its own, so the chain of causes is searched for a UserError first.
    """
    seen = error
    while seen is not None:
        if isinstance(seen, UserError):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, UnicodeDecodeError):
        bad = error.object[error.start]
        return f"the text is not UTF-8: byte 0x{bad:02x} at offset {error.start}"
    if isinstance(error, OSError) or type(error).__module__ == "omegaconf.errors":
        return str(error)
    if isinstance(error, RuntimeError) and "dataloader mismatch" in str(error):
        return (
            "the checkpoint was saved by another number of processes or batch size, and its "
            "place in the data does not fit; add --reset-dataloader to start the epoch over"
        )
    return None


@contextlib.contextmanager
def one_line_errors():
    """Turn an error that ``describe`` knows, or an interruption, into one line and a status."""
    try:
        yield
    except KeyboardInterrupt:
        print("\npe-fairseq: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        line = describe(error)
        if line is None:
            raise
        logger.debug("traceback of the error below", exc_info=True)
        sys.exit(f"pe-fairseq: error: {' '.join(line.split())}")
