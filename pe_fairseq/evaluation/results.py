"""Results as lines of JSON, each with the signature that says what it is a number of."""

import json
import os
from pathlib import Path
from typing import List, Optional

from ..errors import UserError


def short(signature: dict) -> str:
    """The signature on one line: hashes by their first eight digits."""
    parts = []
    for key, value in signature.items():
        if isinstance(value, dict):
            value = ",".join(f"{name}={_brief(item)}" for name, item in value.items())
        parts.append(f"{key}:{_brief(value)}")
    return " | ".join(part for part in parts if not part.endswith((":", ":None")))


def _brief(value):
    text = str(value)
    return text[:8] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text


class Results:
    """A file of results, to which lines are added; without a path they are only kept.

    Raises:
        UserError: the file is there and holds something else.
    """

    def __init__(self, path: Optional[str]):
        self.path = Path(path) if path else None
        if self.path and self.path.is_dir():
            raise UserError(f"--results-path {path} is a folder; name a file")
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("ab").close()  # fails here rather than after the work
        self.lines = read(self.path) if self.path else []

    def find(self, signature: dict) -> Optional[dict]:
        """The result with just this signature, if it was measured before."""
        wanted = _plain(signature)
        return next((line for line in self.lines if line["signature"] == wanted), None)

    def add(self, result: dict):
        """Keep ``result``, and write it as one line."""
        result = _plain(result)
        self.lines.append(result)
        if self.path:
            line = json.dumps(result, ensure_ascii=False, allow_nan=False).encode() + b"\n"
            with open(self.path, "r+b", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    line = b"\n" + line
                if file.write(line) < len(line):
                    file.truncate(end)
                    raise UserError(f"there is no room for a result in {self.path}")
                os.fsync(file.fileno())


def read(path) -> List[dict]:
    """The results in a file.

    Raises:
        UserError: a line is no result.
    """
    results = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            result = json.loads(line)
            result["signature"]["measure"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number} is no result ({error}); remove it"
            ) from error
        results.append(result)
    return results


def _plain(value):
    return json.loads(json.dumps(value))
