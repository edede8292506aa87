"""Position encodings for fairseq.

Importing this package repairs fairseq where it needs it and registers everything
with it: it is what ``--user-dir`` names. ``pe_fairseq.positions`` and
``pe_fairseq.attention`` need torch alone.
"""

import contextlib

from . import errors, logs, user_dir

__version__ = "0.1.0"

with errors.one_line_errors() if errors.under_fairseq_command() else contextlib.nullcontext():
    user_dir.refuse_other_copies()

try:
    with logs.untouched_logging():
        import fairseq as _fairseq  # noqa: F401
except Exception as error:  # not installed, or broken: `pe-fairseq doctor` says which
    FAIRSEQ_ERROR = error
else:
    FAIRSEQ_ERROR = None
    from . import compat
    from .models import language_model, weight_decay  # noqa: F401
    from .tasks import language_modeling  # noqa: F401

    compat.apply()
    weight_decay.install()
    from .hub import load  # noqa: F401


def __getattr__(name):
    if name == "load":
        raise errors.UserError(
            f"fairseq does not import here ({FAIRSEQ_ERROR}); run pe-fairseq doctor"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
