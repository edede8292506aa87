"""Repair: logging as fairseq's commands, or the program that imports us, mean it.

``import fairseq`` imports a speech model that sets the root logger to DEBUG on standard
error. The commands' own set-up then has no effect: no time stamps, nothing on standard
output, and every library's debug lines between.
"""

import contextlib
import logging
import os

from .errors import under_fairseq_command


@contextlib.contextmanager
def untouched_logging():
    """Take back what an import inside does to the root logger, and keep it quiet."""
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), root.manager.disable
    logging.disable(logging.INFO)
    yield
    logging.disable(disabled)
    root.setLevel(level)
    root.handlers[:] = handlers


def install():
    """Set up logging under a fairseq command, as the command itself meant to."""
    asked = os.environ.get("LOGLEVEL", "").upper() == "DEBUG"
    if under_fairseq_command() and logging.getLogger().level == logging.DEBUG and not asked:
        from fairseq import utils

        utils.reset_logging()
