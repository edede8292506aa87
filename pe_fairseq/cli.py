"""``pe-fairseq``: what is not a fairseq command."""

import argparse
import sys

import pe_fairseq

from . import doctor, user_dir
from .errors import UserError, one_line_errors


def main(arguments=None):
    """Entry point; exits with 0, or 1 and one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="pe-fairseq",
        description="Position encodings for fairseq. Training and evaluation run "
        "through fairseq's own commands: fairseq-train --user-dir \"$(pe-fairseq "
        'user-dir)" …',
    )
    parser.add_argument("--version", action="version", version=pe_fairseq.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    command = commands.add_parser(
        "doctor", help="check this machine: versions, devices, what is fast, what fails"
    )
    command.set_defaults(run=lambda options: doctor.main())

    command = commands.add_parser(
        "user-dir", help="print the package's folder, to give as --user-dir"
    )
    command.set_defaults(run=lambda options: print(user_dir.package_dir()))

    command = commands.add_parser(
        "convert",
        help="turn a stock transformer_lm checkpoint into one of pe_lm",
        description="Write a stock fairseq transformer_lm checkpoint as one of pe_lm. "
        "Weights, optimizer state and data position stay as they are.",
    )
    command.add_argument("source", help="the stock checkpoint")
    command.add_argument("target", help="the file to write; it must not exist")
    command.set_defaults(run=_convert)

    command = commands.add_parser(
        "schemes", help="list the position schemes: what they promise and what they cost"
    )
    for flag, default, text in (
        ("--embed-dim", 512, "embedding dimension"),
        ("--heads", 8, "attention heads"),
        ("--layers", 6, "layers"),
        ("--max-positions", 512, "positions that the model is trained with"),
    ):
        command.add_argument(flag, type=int, default=default, help=f"{text} ({default})")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_schemes)

    options = parser.parse_args(arguments)
    with one_line_errors():
        sys.exit(options.run(options))


def _schemes(options):
    # imports torch, without which the doctor must run
    from . import positions, schemes

    size = positions.ModelSize(
        embed_dim=options.embed_dim,
        max_positions=options.max_positions,
        heads=options.heads,
        layers=options.layers,
    )
    schemes.main(size, options.json)


def _convert(options):
    if pe_fairseq.FAIRSEQ_ERROR is not None:
        raise UserError("fairseq does not import here; run pe-fairseq doctor")
    from .models.stock import convert

    position = convert(options.source, options.target)
    print(f"wrote {options.target}: pe_lm with --decoder-position {position}")
