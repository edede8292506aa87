"""One split of binarised text: its tokens, where its documents end, how many words it has."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

import torch
from fairseq.data import data_utils
from torch import Tensor

from ..corpus import manifest
from ..errors import UserError


@dataclass(frozen=True)
class Text:
    """A split.

    Attributes:
        tokens: ``(tokens,)``, ``</s>`` at every line's end.
        documents: the number of tokens of every document, in order.
        words: what per-word perplexity divides by, words and line ends; None where no
            manifest says it.
        data: what was read, for a result's signature.
    """

    tokens: Tensor
    documents: List[int]
    words: Optional[int]
    data: dict


def read(folder, split: str, dictionary) -> Text:
    """Read ``split`` of the binary files in ``folder``.

    Without a manifest the whole split is one document.

    Raises:
        UserError: there is no such split, it is empty, or the manifest is of other files.
    """
    path = Path(folder, split)
    binary, index = path.with_name(f"{split}.bin"), path.with_name(f"{split}.idx")
    if not (binary.is_file() and index.is_file()):
        raise UserError(f"there is no {binary}: {folder} has no binarised split '{split}'")
    if binary.stat().st_size == 0:
        raise UserError(f"the split '{split}' in {folder} holds no text")
    dataset = data_utils.load_indexed_dataset(str(path), dictionary)
    lines = [dataset[number] for number in range(len(dataset))]
    tokens = torch.cat(lines).long()
    found = manifest.read(folder)
    documents, words = [len(tokens)], None
    sha256 = manifest.binary_sha256(folder, split)
    if found is not None:
        described = found.splits.get(split)
        if found.binaries.get(split) != sha256 or sum(described.documents) != len(lines):
            raise UserError(
                f"{folder}/{manifest.NAME} does not describe {binary.name}; prepare the "
                "corpus again"
            )
        documents = _count_tokens(lines, described.documents)
        words = described.scored_words
    return Text(
        tokens,
        documents,
        words,
        {
            "corpus": found.corpus if found is not None else None,
            "split": split,
            "sha256": sha256,
            "words": words,
            "documents": hashlib.sha256(str(documents).encode()).hexdigest(),
        },
    )


def _count_tokens(lines, documents):
    sizes = iter([len(line) for line in lines])
    return [sum(next(sizes) for _ in range(count)) for count in documents]
