"""``pe-fairseq schemes``: every registered scheme, what it promises and what it costs."""

import json
import sys
from dataclasses import dataclass
from typing import List, Optional

import torch
from rich.console import Console
from rich.table import Table

from . import positions
from .errors import UserError

WIDTH_OF_A_FILE = 160


@dataclass(frozen=True)
class Row:
    """What a table says of one scheme at one size.

    Attributes:
        parameters: trained numbers of the scheme in the whole model; None where the scheme
            does not exist at this size.
        longest: the number of positions it is defined for; None without a limit.
        attention: what it goes with, as it stands: softmax, linear attention, or both.
    """

    name: str
    aliases: List[str]
    places: List[str]
    parameters: Optional[int]
    longest: Optional[int]
    translation_invariant: bool
    length_dependent: bool
    two_sided: bool
    attention: List[str]
    paper: str
    summary: str


def rows(size: positions.ModelSize) -> List[Row]:
    """One row per registered scheme, in the order of registration."""
    return [_row(name, size) for name in positions.SCHEMES]


def count_parameters(scheme, size: positions.ModelSize) -> int:
    """Trained numbers of ``scheme`` in a model of ``size``."""
    modules = torch.nn.ModuleList(
        module
        for module in (
            positions.build_embedding(scheme, size, lambda name: torch.Generator()),
            *positions.build_layers(scheme, size, lambda name: torch.Generator()),
        )
        if module is not None
    )
    return sum(parameter.numel() for parameter in modules.parameters())


def _parameters(scheme, size):
    try:
        return count_parameters(scheme, size)
    except UserError:
        return None


def _row(name, size):
    scheme = positions.parse(name)
    return Row(
        name=name,
        aliases=[alias for alias, of in positions.ALIASES.items() if of == name],
        places=list(scheme.places),
        parameters=_parameters(scheme, size),
        longest=scheme.longest(size),
        translation_invariant=scheme.translation_invariant,
        length_dependent=scheme.length_dependent,
        two_sided=scheme.two_sided,
        attention=_attention(scheme),
        paper=scheme.paper,
        summary=type(scheme).__doc__.partition("\n")[0],
    )


def _attention(scheme):
    if scheme.needs_scores:
        return ["softmax"]
    return ["linear"] if scheme.decays else ["softmax", "linear"]


def main(size: positions.ModelSize, as_json: bool):
    """Print the table, or the rows as JSON."""
    found = rows(size)
    if as_json:
        print(json.dumps([vars(row) for row in found], indent=2))
        return
    table = Table(
        title=f"{size.layers} layers of {size.embed_dim}, {size.heads} heads, "
        f"{size.max_positions} positions"
    )
    for column in HEADINGS:
        table.add_column(column, justify="right" if column == "parameters" else "left")
    for row in found:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(table)


HEADINGS = (
    "scheme",
    "where",
    "parameters",
    "longest",
    "promises",
    "attention",
    "paper",
)


def cells(row: Row) -> List[str]:
    """The row's entries under ``HEADINGS``."""
    return [
        row.name,
        ", ".join(row.places) or "nowhere",
        "not at this size" if row.parameters is None else f"{row.parameters:,}",
        "any" if row.longest is None else f"{row.longest:,}",
        ", ".join(_promises(row)),
        ", ".join(row.attention),
        row.paper,
    ]


def _promises(row):
    for promise, kept in (
        ("shift-invariant", row.translation_invariant),
        ("two-sided", row.two_sided),
        ("length-dependent", row.length_dependent),
    ):
        if kept:
            yield promise


def markdown(size: positions.ModelSize) -> str:
    """The table that the README has."""
    lines = [HEADINGS, ["---"] * len(HEADINGS)]
    lines += [[f"`{row.name}`", *cells(row)[1:]] for row in rows(size)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
