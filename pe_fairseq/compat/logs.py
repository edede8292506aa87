"""Repair: logs as fairseq's commands mean them.

``import fairseq`` imports a speech model that sets the root logger to DEBUG on standard
error. The commands' own set-up then has no effect: no time stamps, nothing on standard
output, and every library's debug lines between.
"""

import logging
import os

from fairseq import utils

from ..errors import under_fairseq_command


def install():
    """Set up logging as fairseq's commands do; elsewhere, take back what was set."""
    root = logging.getLogger()
    asked = os.environ.get("LOGLEVEL", "INFO").upper() == "DEBUG"
    if root.level != logging.DEBUG or asked:
        return
    if under_fairseq_command():
        utils.reset_logging()
        return
    root.setLevel(logging.WARNING)
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
