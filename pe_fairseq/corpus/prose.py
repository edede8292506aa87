"""Which paragraphs of a string constant are English prose."""

import inspect
import re
from typing import List, Optional

MIN_WORDS = 6
MIN_PLAIN = 0.75
MIN_COMMON = 0.2

COMMON = frozenset(
    "a an and are as at be been but by can do for from has have if in is it its may must "
    "not of on one only or should so such than that the their then there these this to "
    "used using was when where which will with you".split()
)

BLANK_LINES = re.compile(r"\n(?:[ \t\f]*\n)+")
UNDERLINE = re.compile(r"([=\-~^*\"#+.`])\1{2,}")
HEADING = re.compile(r"[A-Z][\w ]*::?")
DIRECTIVE = re.compile(r"\.\. [\w-]+ ?::\s*")
CODE = re.compile(
    r">>>|\.\.\. |\$ |\||\+-|@\w|:(?:param|type|returns?|rtype|raises?)\b"
    r"|(?:def|class|import) |from [\w.]+ import "
)
PLAIN_WORD = re.compile(r"[a-z]+(?:['’-][a-z]+)*")


def paragraphs(string: str) -> List[str]:
    """The prose paragraphs of ``string``, in order, each of them one line."""
    blocks = BLANK_LINES.split(inspect.cleandoc(string))
    return [line for line in map(_prose, blocks) if line is not None]


def _prose(block: str) -> Optional[str]:
    """``block`` as one line without its heading; None where it is not prose.

    Doctests, code, tables and field lists are known by how a line begins. Signatures,
    formulas, templates and lists of names have too few words that are letters alone, or
    too few of the words that join others into a sentence.
    """
    lines = [line.strip() for line in block.split("\n") if line.strip()]
    if len(lines) > 1 and UNDERLINE.fullmatch(lines[1]):
        lines = lines[2:]
    if any(CODE.match(line) for line in lines):
        return None
    if lines:
        lines[0] = DIRECTIVE.sub("", lines[0])
    if lines and HEADING.fullmatch(lines[0]):
        lines = lines[1:]
    words = " ".join(lines).split()
    if len(words) < MIN_WORDS:
        return None
    bare = [word.strip("\"'`.,;:!?()*[]").lower() for word in words]
    plain = [word for word in bare if PLAIN_WORD.fullmatch(word)]
    common = sum(word in COMMON for word in plain)
    if len(plain) < MIN_PLAIN * len(words) or common < MIN_COMMON * len(words):
        return None
    line = " ".join(words)
    # a string constant may hold control characters and halves of surrogate pairs
    return line if line.isprintable() else None
