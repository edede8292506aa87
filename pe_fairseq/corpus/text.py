"""A corpus of one's own text: UTF-8 files, each of them cut into train, valid and test."""

import hashlib
from itertools import groupby
from pathlib import Path
from typing import Dict, List, Tuple

from ..compat.commands import check_text
from ..errors import UserError
from . import progress

# of a file's paragraphs, the last tenth is test and the twentieth before it is valid
TEST_ONE_IN = 10
VALID_ONE_IN = 20


def read(files: List[str]) -> Tuple[Dict[str, List[List[str]]], List[dict]]:
    """The documents of every split, as lines, and where they came from.

    Raises:
        UserError: a file is missing, not UTF-8, empty or too short to be cut in three.
    """
    splits = {"train": [], "valid": [], "test": []}
    sources, seen = [], set()
    for file in progress.each(files, "reading text", total=len(files)):
        if not Path(file).is_file():
            raise UserError(f"--text {file}: there is no such file")
        check_text(file)
        content = Path(file).read_bytes()
        lines = [line for line in dict.fromkeys(paragraphs(content)) if line not in seen]
        seen.update(lines)
        test, valid = len(lines) // TEST_ONE_IN, len(lines) // VALID_ONE_IN
        if not valid:
            raise UserError(
                f"--text {file} has {len(lines)} paragraphs that no file before it has, and "
                f"{VALID_ONE_IN} is the fewest that can be cut into train, valid and test; "
                "join short files into one"
            )
        splits["train"].append(lines[: -test - valid])
        splits["valid"].append(lines[-test - valid : -test])
        splits["test"].append(lines[-test:])
        sources.append({"name": str(file), "sha256": hashlib.sha256(content).hexdigest()})
    return splits, sources


def paragraphs(content: bytes) -> List[str]:
    """One line a paragraph: blank lines separate them, or else every line is one."""
    lines = [
        " ".join(line.split()) for line in content.decode("utf-8-sig").strip().splitlines()
    ]
    if "" not in lines:
        return lines
    return [" ".join(group) for some, group in groupby(lines, key=bool) if some]
