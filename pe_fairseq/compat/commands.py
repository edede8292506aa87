"""fairseq's command lines: checked early, and with errors of one line."""

import sys

from fairseq import options

from ..errors import one_line_errors
from .overrides import parse_overrides
from .patching import replace
from .precision import without_tpu


def _parse(stock_parse):
    def parse_args_and_arch(parser, *args, **kwargs):
        with one_line_errors():
            parsed = stock_parse(parser, *args, **kwargs)
            namespace = parsed[0] if isinstance(parsed, tuple) else parsed
            if getattr(namespace, "model_overrides", None):
                parse_overrides(namespace.model_overrides)
        without_tpu(namespace)
        return parsed

    return parse_args_and_arch


def _preprocess(stock_main):
    def main(args):
        with one_line_errors():
            return stock_main(args)

    return main


def install():
    """Check what can be checked when the command line is read."""
    replace(options, "parse_args_and_arch", _parse)
    # the one command that does not go through call_main, if it is the one that runs
    preprocess = sys.modules.get("fairseq_cli.preprocess")
    if preprocess is not None:
        replace(preprocess, "main", _preprocess)
