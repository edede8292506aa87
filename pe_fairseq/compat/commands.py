"""fairseq's command lines: checked early, and with errors of one line."""

import contextlib
import io
import os
import sys

from fairseq import options

from ..errors import UserError, one_line_errors, under_fairseq_command
from .overrides import parse_overrides
from .patching import replace
from .precision import without_tpu


def _parse(stock_parse):
    def parse_args_and_arch(parser, *args, **kwargs):
        if under_fairseq_command() and {"-h", "--help"} & set(sys.argv):
            _print_whole_help(stock_parse, parser)
        with one_line_errors():
            parsed = stock_parse(parser, *args, **kwargs)
            namespace = parsed[0] if isinstance(parsed, tuple) else parsed
            if getattr(namespace, "model_overrides", None):
                parse_overrides(namespace.model_overrides)
        without_tpu(namespace)
        return parsed

    return parse_args_and_arch


def _print_whole_help(stock_parse, parser):
    """Print the help with the model's and the task's options, and exit.

    Stock prints it before it has added them. Parsing adds them; what it says of missing
    arguments is of no interest here.
    """
    sys.argv = [word for word in sys.argv if word not in ("-h", "--help")]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        stock_parse(parser)
    parser.print_help()
    sys.exit(0)


def _preprocess(stock_main):
    def main(args):
        with one_line_errors():
            for path in _text_files(args):
                check_text(path)
            return stock_main(args)

    return main


def _text_files(args):
    """The files that fairseq-preprocess is about to read."""
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    prefixes = [args.trainpref or ""]
    for several in (args.validpref, args.testpref):
        prefixes += (several or "").split(",")
    for prefix in filter(None, prefixes):
        for language in languages:
            path = prefix if language is None else f"{prefix}.{language}"
            if os.path.isfile(path):
                yield path


def check_text(path):
    """Raise UserError if the file holds no word, or is not UTF-8.

    Stock fairseq steps back byte by byte from what it cannot decode, up to the start
    of the file, which looks as if it hung.
    """
    words = False
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            words = words or bool(line.strip())
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path} is not UTF-8: byte 0x{line[error.start]:02x} in line {number}; "
                    f"convert it, e.g. iconv -f latin1 -t utf-8 {path}"
                ) from None
    if not words:
        raise UserError(f"{path} is empty: it holds no word")


def install():
    """Check what can be checked when the command line is read."""
    replace(options, "parse_args_and_arch", _parse)
    for module in running("fairseq_cli.preprocess"):
        # the one command that does not go through call_main
        replace(module, "main", _preprocess)


def running(name):
    """The module called ``name``, as imported and as the program that runs, if it is there."""
    for module in (sys.modules.get(name), sys.modules["__main__"]):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == name:
            yield module
