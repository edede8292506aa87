"""Spec text: how a choice and its options are written on the command line.

``name`` or ``name(option=value,option=value)``; the options are a frozen dataclass whose
``__post_init__`` raises ``UserError`` for a value out of range.
"""

import dataclasses
import re
import typing

from .errors import UserError, nearest

_CALL = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\(([^()]*)\))?\s*")


def refuse_references(kind, text):
    """Raise UserError if fairseq would read a part of ``text`` as another option's value."""
    if "${" in text:
        raise UserError(
            f"{kind} spec '{text}' contains '${{', which fairseq would read as a "
            "reference to another option; write the value itself"
        )


def split_call(kind, part, text):
    """The name, and what stands between parentheses, in ``part`` of the spec ``text``.

    Raises:
        UserError: it does not parse.
    """
    match = _CALL.fullmatch(part)
    if match is None:
        raise UserError(
            f"cannot read '{part.strip()}' in {kind} spec '{text}'; write "
            "scheme or scheme(option=value,option=value)"
        )
    name, inside = match.groups()
    return name, inside or ""


def read_options(name, options_class, inside, aliases):
    """The options of ``name`` as ``inside`` gives them: an instance of ``options_class``.

    Args:
        aliases: the same option under the name that other code has for it.

    Raises:
        UserError: an option does not exist, is given twice, or has a value of the wrong type
            or out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    options = {}
    for item in filter(None, (item.strip() for item in inside.split(","))):
        option, equals, value = (word.strip() for word in item.partition("="))
        option = aliases.get(option, option)
        if option not in fields:
            known = ", ".join(fields) or "it has none"
            raise UserError(
                f"'{name}' has no option '{option}'{nearest(option, fields)}; "
                f"its options: {known}"
            )
        if not equals or not value:
            raise UserError(f"option '{option}' of '{name}' needs a value: {option}=…")
        if option in options:
            raise UserError(f"option '{option}' of '{name}' is given twice")
        options[option] = _convert(name, fields[option], value)
    return options_class(**options)


def write_call(name, options):
    """The spec text of ``name`` with those ``options`` that are not default."""
    changed = [
        f"{field.name}={_text(getattr(options, field.name))}"
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != field.default
    ]
    return f"{name}({','.join(changed)})" if changed else name


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _convert(name, field, value):
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
            f"option '{field.name}' of '{name}' takes {kinds[kind]}"
            f"{' or none' if optional else ''}, not '{value}'"
        ) from None
