"""Spec text: how a scheme and its options are written on the command line.

``scheme`` or ``scheme(option=value,option=value)``, parts joined by ``+``::

    learned+shaw(clip=32,values=false)
"""

import dataclasses
import re
import typing

from ..errors import UserError, nearest
from .combined import Combined
from .registry import find

# the same option under the name that other code has for it
OPTION_ALIASES = {
    "max_relative_position": "clip",
    "num_buckets": "buckets",
    "rotary_base": "base",
    "rotary_pct": "fraction",
    "theta": "base",
}

_PART = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\(([^()]*)\))?\s*")


def parse(text):
    """Return the ``Scheme`` that ``text`` describes.

    Raises:
        UserError: the text does not parse, names a scheme or option that does not
            exist, or gives a value of the wrong type or out of range.
    """
    if "${" in text:
        raise UserError(
            f"position spec '{text}' contains '${{', which fairseq would read as a "
            "reference to another option; write the value itself"
        )
    outside_parentheses = r"\+(?![^(]*\))"
    schemes = [_parse_part(part, text) for part in re.split(outside_parentheses, text)]
    return schemes[0] if len(schemes) == 1 else Combined(schemes)


def _parse_part(part, text):
    match = _PART.fullmatch(part)
    if match is None:
        raise UserError(
            f"cannot read '{part.strip()}' in position spec '{text}'; write "
            "scheme or scheme(option=value,option=value)"
        )
    name, inside = match.groups()
    scheme = find(name)
    return scheme(scheme.Options(**_parse_options(scheme, inside or "")))


def _parse_options(scheme, inside):
    fields = {field.name: field for field in dataclasses.fields(scheme.Options)}
    options = {}
    for item in filter(None, (item.strip() for item in inside.split(","))):
        name, equals, value = (word.strip() for word in item.partition("="))
        name = OPTION_ALIASES.get(name, name)
        if name not in fields:
            known = ", ".join(fields) or "it has none"
            raise UserError(
                f"'{scheme.name}' has no option '{name}'{nearest(name, fields)}; "
                f"its options: {known}"
            )
        if not equals or not value:
            raise UserError(f"option '{name}' of '{scheme.name}' needs a value: {name}=…")
        if name in options:
            raise UserError(f"option '{name}' of '{scheme.name}' is given twice")
        options[name] = _convert(scheme.name, fields[name], value)
    return options


def _convert(scheme_name, field, value):
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    kind, optional = field.type, False
    if typing.get_origin(kind) is typing.Union:  # Optional[…]
        kind, optional = typing.get_args(kind)[0], True
    if optional and value.lower() == "none":
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (KeyError, ValueError):
        raise UserError(
            f"option '{field.name}' of '{scheme_name}' takes {kinds[kind]}"
            f"{' or none' if optional else ''}, not '{value}'"
        ) from None
