"""The corpus ``docs``: English prose from the installed Python, torch and numpy.

It needs no download. Source files are parsed, never imported: a document is the prose of
one file's string constants, most of them docstrings, in source order. The held-out test
set is of another kind: the long topics of the Python reference that ``help()`` shows.
"""

import ast
import gc
import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import signal
import sysconfig
import warnings
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from ..errors import UserError
from . import progress, prose

LONG_WORDS = 512
MIN_WORDS = 32
VALID_ONE_IN = 25
MAX_WORKERS = 8

TOPICS = "pydoc_data/topics.py"
# the topics are the test set, and what tests hold is data
LEFT_OUT = {"site-packages", "dist-packages", "pydoc_data", "test", "tests", "idle_test"}

# the paragraphs of one string constant, and the strings of one source file
Text = List[str]
Document = List[Text]


def read() -> Tuple[Dict[str, List[List[str]]], List[dict]]:
    """The documents of every split, as lines, and where they came from.

    Raises:
        UserError: a package or the topics are not there.
    """
    python = Path(sysconfig.get_path("stdlib"))
    roots = {"python": python, "torch": _folder("torch"), "numpy": _folder("numpy")}
    test = topics(python / TOPICS)
    documents, sources = extract(roots)
    return split(documents, test), sources


def _folder(package):
    """The folder of ``package``, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{package} is not installed, and its documentation is part of this corpus; "
            f"pip install {package}, or give your own text with --text FILE"
        )
    return Path(spec.submodule_search_locations[0])


def topics(path) -> List[List[str]]:
    """The long topics of the Python reference, by name, whole: one line a paragraph."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        tree = ast.Module(body=[])
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "topics":
            found = ast.literal_eval(node.value)
    long = [text for _, text in sorted(found.items()) if len(text.split()) >= LONG_WORDS]
    if not long:
        raise UserError(
            f"this Python has no reference topics ({path}), which are the test set; use "
            "another Python, such as one from python.org, or give your own text with "
            "--text FILE"
        )
    return [
        [" ".join(block.split()) for block in prose.BLANK_LINES.split(text) if block.strip()]
        for text in long
    ]


def extract(roots: Dict[str, Path]) -> Tuple[Dict[str, Document], List[dict]]:
    """The prose of every source file under ``roots``, by path, and an entry a root."""
    paths = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in roots.items()
        for path in root.rglob("*.py")
        if not LEFT_OUT.intersection(path.relative_to(root).parts[:-1])
    }
    names = sorted(paths)
    files, skipped = dict.fromkeys(roots, 0), dict.fromkeys(roots, 0)
    documents = {}
    workers = min(os.cpu_count() or 1, MAX_WORKERS)
    with multiprocessing.Pool(workers, _start_worker) as pool:
        read = pool.imap(_document, [paths[name] for name in names], chunksize=16)
        for name, document in zip(
            names, progress.each(read, "reading source files", total=len(names))
        ):
            root = name.partition("/")[0]
            files[root] += 1
            if document is None:
                skipped[root] += 1
            else:
                documents[name] = document
    sources = [
        {
            "name": root,
            "version": _version(root),
            "files": files[root],
            "skipped_files": skipped[root],
        }
        for root in roots
    ]
    return documents, sources


def _start_worker():
    # an interruption is the parent's to report, and it ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # syntax trees have no cycles, and looking for some doubles the time
    gc.disable()


def _document(path) -> Optional[Document]:
    """The prose of a source file; None where it is not one that this Python reads."""
    try:
        strings = string_constants(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return [text for text in map(prose.paragraphs, strings) if text]


def _version(root):
    return platform.python_version() if root == "python" else importlib.metadata.version(root)


def string_constants(source: bytes) -> List[str]:
    """The string constants of a source file, in order; pieces of f-strings are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(source)
    strings, pieces = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces.update(map(id, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node)
    strings = [node for node in strings if id(node) not in pieces]
    strings.sort(key=lambda node: (node.lineno, node.col_offset))
    return [node.value for node in strings]


def split(documents: Dict[str, Document], test: List[List[str]]) -> Dict[str, List[List[str]]]:
    """Train, valid and test, no two of which share a paragraph.

    The hash of a file's path says whether it may be in valid, so that a file added or
    changed moves no other.
    """
    held_out = {line for document in test for line in document}
    chosen = {name: text for name, text in documents.items() if _is_chosen(name)}
    valid = {
        name: lines
        for name, lines in deduplicate(chosen, held_out).items()
        if _words(lines) >= LONG_WORDS
    }
    held_out.update(line for lines in valid.values() for line in lines)
    rest = {name: text for name, text in documents.items() if name not in valid}
    train = [
        lines for lines in deduplicate(rest, held_out).values() if _words(lines) >= MIN_WORDS
    ]
    return {"train": train, "valid": list(valid.values()), "test": test}


def _is_chosen(name):
    return int(hashlib.sha256(name.encode("utf-8")).hexdigest(), 16) % VALID_ONE_IN == 0


def _words(lines):
    return sum(len(line.split()) for line in lines)


def deduplicate(documents: Dict[str, Document], held_out) -> Dict[str, List[str]]:
    """The lines of every document: each paragraph once, where it stands first.

    A long string stays whole, but for held-out paragraphs; those that it has are left out
    elsewhere. A copy of one is left out.
    """
    in_long = {
        line
        for document in documents.values()
        for text in document
        if _words(text) >= LONG_WORDS
        for line in text
    }
    seen = set(held_out)
    result = {}
    for name, document in documents.items():
        lines = result[name] = []
        for text in document:
            long = _words(text) >= LONG_WORDS
            if long and seen.issuperset(text):
                continue
            for line in text:
                if line in held_out or not long and (line in seen or line in in_long):
                    continue
                seen.add(line)
                lines.append(line)
    return result
