"""``manifest.json``, beside the binary files: what a corpus is and where its documents end.

Evaluation takes the number of words from here, as pieces of words say nothing of it, and
lets no window cross from one document into the next.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Dict, List, Optional

from ..errors import UserError

NAME = "manifest.json"


@dataclass(frozen=True)
class Split:
    """One of train, valid and test.

    Attributes:
        words: words separated by blanks, line ends not counted.
        lines: lines, each of which becomes one ``</s>``.
        documents: the number of lines of every document, in order.
        sha256: of the text before it was cut into pieces.
    """

    words: int
    lines: int
    documents: List[int]
    sha256: str

    @property
    def scored_words(self) -> int:
        """What per-word perplexity divides by: every word and every line end."""
        return self.words + self.lines


@dataclass(frozen=True)
class Manifest:
    """What a folder of binary files was made of.

    Attributes:
        corpus: its name, such as ``docs`` or ``WikiText-2``.
        sources: where the text came from, one entry a package or file.
        subword: the sentencepiece model's file, sha256 and number of pieces, or None
            where the dictionary has words.
        versions: of the programs that made it.
        splits: by name.
        binaries: sha256 of every split's binary file; set by ``write``.
    """

    corpus: str
    sources: List[dict]
    subword: Optional[dict]
    versions: Dict[str, str]
    splits: Dict[str, Split]
    binaries: Dict[str, str] = field(default_factory=dict)

    def write(self, folder):
        """Write ``folder/manifest.json``, beside the binary files that it describes."""
        binaries = {split: binary_sha256(folder, split) for split in self.splits}
        content = asdict(replace(self, binaries=binaries))
        text = json.dumps(content, indent=1, ensure_ascii=False)
        Path(folder, NAME).write_text(text + "\n", encoding="utf-8")


def binary_sha256(folder, split: str) -> str:
    """sha256 of the binary files of ``split``: tokens and index."""
    digest = hashlib.sha256()
    for ending in ("bin", "idx"):
        digest.update(Path(folder, f"{split}.{ending}").read_bytes())
    return digest.hexdigest()


def read(folder) -> Optional[Manifest]:
    """The manifest of ``folder``, or None where there is none.

    Raises:
        UserError: it cannot be read as one.
    """
    path = Path(folder, NAME)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        splits = {name: Split(**split) for name, split in content.pop("splits").items()}
        return Manifest(splits=splits, **content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no manifest of this version ({type(error).__name__}: {error}); "
            "prepare the corpus again"
        ) from error
