"""From text to what fairseq-train reads: raw text, pieces, binary files and a manifest."""

import hashlib
import importlib.metadata
import os
import platform
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

import fairseq
import numpy
import sentencepiece
from fairseq.data import indexed_dataset
from rich.console import Console
from rich.table import Table

import pe_fairseq

from ..errors import UserError
from . import manifest, pieces, preprocess, progress

MODEL = "sentencepiece.model"
SPLITS = ("train", "valid", "test")
FILES = (
    "dict.txt",
    MODEL,
    *(f"{split}.{ending}" for split in SPLITS for ending in ("txt", "bin", "idx")),
)


@dataclass(frozen=True)
class Count:
    """What a split was cut into, for comparison with its binary file.

    Attributes:
        tokens: pieces, and one ``</s>`` a line.
        unknown: of them, the word ``<unk>``.
    """

    tokens: int
    unknown: int


def build(
    corpus: str,
    splits: Dict[str, List[List[str]]],
    dest: Path,
    vocabulary: int,
    sources: List[dict],
):
    """Make ``dest``, which appears only when it is complete.

    A ``dest`` that was made from the same text with the same ``vocabulary`` is left alone.

    Args:
        corpus: its name.
        splits: train, valid and test: documents, each a list of lines.
        dest: a new folder.
        vocabulary: the number of pieces, fairseq's four symbols included.
        sources: where the text came from, for the manifest.

    Raises:
        UserError: ``dest`` holds something else, or the text does not go with
            ``vocabulary``.
    """
    dest = Path(dest)
    earlier = check(dest, vocabulary)
    described = {split: _describe(splits[split]) for split in SPLITS}
    if earlier is not None:
        if (earlier.corpus, earlier.splits) != (corpus, described):
            raise UserError(
                f"{dest} holds the corpus {earlier.corpus} of other text; give another "
                "folder, or remove it"
            )
        print(f"{dest} is complete: made from the same text before")
        return
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}-", dir=dest.parent) as work:
        # the temporary folder itself is closed to others
        folder, cut = Path(work, "corpus"), Path(work, "cut")
        folder.mkdir()
        cut.mkdir()
        for split in SPLITS:
            _write(_lines(splits[split]), folder / f"{split}.txt")
        model, counts = _cut(splits, vocabulary, folder, cut)
        preprocess.binarise({split: cut / split for split in SPLITS}, folder, cut / "dict.txt")
        for split in SPLITS:
            _check_binary(folder / split, vocabulary, described[split], counts[split])
        manifest.Manifest(
            corpus=corpus,
            sources=sources,
            subword={
                "file": MODEL,
                "sha256": hashlib.sha256(model).hexdigest(),
                "pieces": vocabulary,
            },
            versions=_versions(),
            splits=described,
        ).write(folder)
        os.rename(folder, dest)
    _print_summary(described, counts)
    print(f"wrote {dest}")


def check(dest, vocabulary: int) -> Optional[manifest.Manifest]:
    """The manifest of a complete ``dest``, None where there is none yet.

    Raises:
        UserError: ``dest`` is anything else, or has another number of pieces.
    """
    pieces.check_vocabulary(vocabulary)
    dest = Path(dest)
    if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())):
        return None
    earlier = manifest.read(dest) if dest.is_dir() else None
    if earlier is None or earlier.subword is None:
        raise UserError(f"{dest} exists and is no corpus of this command; give a new folder")
    for name in FILES:
        if not (dest / name).is_file():
            raise UserError(f"{dest} lacks {name}; remove the folder to make it again")
    if earlier.subword["pieces"] != vocabulary:
        raise UserError(
            f"{dest} was made with --vocabulary {earlier.subword['pieces']}, not "
            f"{vocabulary}; give another folder, or remove it"
        )
    return earlier


def _lines(documents):
    return [line for document in documents for line in document]


def _describe(documents):
    digest, words, lines = hashlib.sha256(), 0, 0
    for line in _lines(documents):
        digest.update(f"{line}\n".encode())
        words += len(line.split())
        lines += 1
    return manifest.Split(
        words=words,
        lines=lines,
        documents=[len(document) for document in documents],
        sha256=digest.hexdigest(),
    )


def _write(lines, path):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _cut(splits, vocabulary, folder, cut):
    """Write the model, and the pieces and dictionary that fairseq-preprocess reads."""
    with progress.during("training pieces"):
        model = pieces.train(_lines(splits["train"]), vocabulary)
    (folder / MODEL).write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    symbols = [pieces.symbol(processor, piece) for piece in range(vocabulary)]
    found = {}
    for split in SPLITS:
        occurrences, lines = Counter(), 0
        with open(cut / split, "w", encoding="utf-8") as file:
            for line in pieces.cut(processor, _lines(splits[split])):
                occurrences.update(line)
                lines += 1
                file.write(" ".join(symbols[piece] for piece in line) + "\n")
        found[split] = Count(
            tokens=sum(occurrences.values()) + lines, unknown=occurrences[pieces.UNKNOWN]
        )
        if split == "train":
            pieces.write_dictionary(processor, occurrences, cut / "dict.txt")
    return model, found


def _check_binary(prefix, vocabulary, split, count):
    """Raise if the binary file is not the text: a fault of the programs, not of the user."""
    items = len(indexed_dataset.MMapIndexedDataset(str(prefix)))
    tokens = numpy.memmap(
        indexed_dataset.data_file_path(str(prefix)),
        dtype=indexed_dataset.best_fitting_int_dtype(vocabulary),
        mode="r",
    )
    found = (items, Count(len(tokens), int((tokens == pieces.UNKNOWN).sum())))
    if found != (split.lines, count):
        raise RuntimeError(f"{prefix} holds {found}, the text {(split.lines, count)}")


def _versions():
    return {
        "pe-fairseq": pe_fairseq.__version__,
        "python": platform.python_version(),
        "fairseq": fairseq.__version__,
        **{
            name: importlib.metadata.version(name)
            for name in ("torch", "numpy", "sentencepiece")
        },
    }


def _print_summary(described, counts):
    table = Table()
    for heading in ("", "documents", "lines", "words", "tokens with </s>"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, split in described.items():
        numbers = (len(split.documents), split.lines, split.words, counts[name].tokens)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    Console().print(table)
