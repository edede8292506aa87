"""``pe-fairseq``: what is not a fairseq command."""

import argparse
import signal
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

    command = commands.add_parser(
        "corpus", help="make a corpus to compare schemes on, without a download"
    )
    _add_docs(command.add_subparsers(metavar="CORPUS", required=True))

    options = parser.parse_args(arguments)
    with one_line_errors():
        sys.exit(options.run(options))


def _add_docs(corpora):
    command = corpora.add_parser(
        "docs",
        help="documentation that is installed here, or your own text",
        description="Make a corpus from what is installed: English prose, a million words, "
        "from the docstrings and other string constants of Python's standard library, "
        "torch and numpy, which are parsed and never imported. A document is one source "
        "file. Valid is a sample of long files; the held-out test set is the Python "
        "reference (the long topics of help()). No paragraph is in two of the three. "
        "DEST gets {train,valid,test}.txt, the text; sentencepiece.model, trained on "
        "train alone; dict.txt and {train,valid,test}.{bin,idx} for fairseq-train; and "
        "manifest.json: sources, versions, and where documents end. It takes less than a "
        "minute on two cores, and the same input gives the same files.",
    )
    command.add_argument("dest", metavar="DEST", help="the folder to write: a new one")
    command.add_argument(
        "--text",
        nargs="+",
        metavar="FILE",
        help="take this UTF-8 text instead, each file one document. Blank lines separate "
        "paragraphs; where there are none, every line is one. A paragraph counts once. Of "
        "every file the last tenth of the paragraphs is test, the twentieth before it "
        "valid, the rest train",
    )
    command.add_argument(
        "--vocabulary",
        type=int,
        default=4000,
        metavar="N",
        help="pieces of words in the dictionary, fairseq's four symbols included (4000)",
    )
    command.set_defaults(run=_docs)


def _docs(options):
    _require_fairseq()
    from .corpus import build, docs, text

    # without this a terminated run would leave its temporary folder behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build.check(options.dest, options.vocabulary)
        splits, sources = text.read(options.text) if options.text else docs.read()
        name = "text" if options.text else "docs"
        build.build(name, splits, options.dest, options.vocabulary, sources)
    except KeyboardInterrupt:
        sys.exit("pe-fairseq: interrupted; nothing was written")


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
    _require_fairseq()
    from .models.stock import convert

    position = convert(options.source, options.target)
    print(f"wrote {options.target}: pe_lm with --decoder-position {position}")


def _require_fairseq():
    if pe_fairseq.FAIRSEQ_ERROR is not None:
        raise UserError("fairseq does not import here; run pe-fairseq doctor")
