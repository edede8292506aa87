"""Pieces of words: a sentencepiece model whose ids are the indices of fairseq's dictionary.

fairseq's own symbols come first, in fairseq's order. What stands in a text as ``<s>``,
``<pad>`` or ``</s>`` is spelled out; the word ``<unk>`` alone becomes the symbol. A
character that the model does not know becomes its UTF-8 bytes, so nothing else is unknown.
"""

import io
import re
from collections import Counter
from itertools import islice
from typing import Iterable, Iterator, List

import sentencepiece

from ..errors import UserError

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
BYTES = 256
# with the blank before it, as it stands in a text, so that it is one piece and not two
UNKNOWN_WORD = "▁<unk>"
UNKNOWN = SYMBOLS.index("<unk>")

# keeps training under half a GiB and a few seconds, whatever the size of the corpus
SAMPLE_CHARACTERS = 50_000_000
BATCH_LINES = 10_000


def check_vocabulary(vocabulary: int):
    """Raise UserError if no model can have so few pieces."""
    if vocabulary <= len(SYMBOLS) + BYTES:
        raise UserError(
            f"--vocabulary {vocabulary} is too small: {BYTES} bytes and {len(SYMBOLS)} "
            "symbols come before the first character"
        )


def train(lines: List[str], vocabulary: int) -> bytes:
    """A model with ``vocabulary`` pieces, the same from the same lines.

    Byte-pair merges, since on a million words they give as few pieces as a unigram model,
    in a sixth of the time, and counting them is exact arithmetic.

    Raises:
        UserError: there are not so many pieces in the text, or more characters.
    """
    model = io.BytesIO()
    start, pad, end, _ = SYMBOLS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_sample(lines)),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            byte_fallback=True,
            normalization_rule_name="identity",
            max_sentence_length=SAMPLE_CHARACTERS,
            bos_id=0,
            bos_piece=start,
            # its own symbol for the unknown, which byte_fallback leaves without use
            unk_id=1,
            unk_piece=pad,
            eos_id=2,
            eos_piece=end,
            pad_id=-1,
            user_defined_symbols=[UNKNOWN_WORD],
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        most = re.search(r"value <= (\d+)", str(error))
        least = re.search(r"\d+ vs (\d+)", str(error))
        if most:
            raise UserError(
                f"--vocabulary {vocabulary} is too large for this text: lower it to "
                f"{most[1]} or less"
            ) from error
        if least:
            raise UserError(
                f"--vocabulary {vocabulary} is too small for this text: raise it to "
                f"{least[1]} or more"
            ) from error
        raise
    return model.getvalue()


def _sample(lines):
    """Every n-th line, such that they are not too many to train on."""
    characters = sum(map(len, lines))
    return lines[:: -(-characters // SAMPLE_CHARACTERS) or 1]


def cut(processor, lines: Iterable[str]) -> Iterator[List[int]]:
    """The pieces of every line. Several blanks count as one, none at either end."""
    normalised = (" ".join(line.split()) for line in lines)
    while batch := list(islice(normalised, BATCH_LINES)):
        yield from processor.encode(batch)


def symbol(processor, piece: int) -> str:
    """What fairseq calls the piece."""
    return "<unk>" if piece == UNKNOWN else processor.id_to_piece(piece)


def write_dictionary(processor, counts: Counter, path):
    """Write every piece, in order, with its count; fairseq adds its symbols itself."""
    with open(path, "w", encoding="utf-8") as file:
        for piece in range(len(SYMBOLS), processor.get_piece_size()):
            file.write(f"{processor.id_to_piece(piece)} {counts[piece]}\n")
