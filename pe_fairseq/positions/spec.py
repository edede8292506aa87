"""Spec text of positions: schemes and their options, joined by ``+``::

learned+shaw(clip=32,values=false)
"""

import re

from ..spec_text import read_options, refuse_references, split_call
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


def parse(text):
    """Return the ``Scheme`` that ``text`` describes.

    Raises:
        UserError: the text does not parse, names a scheme or option that does not
            exist, or gives a value of the wrong type or out of range.
    """
    refuse_references("position", text)
    outside_parentheses = r"\+(?![^(]*\))"
    schemes = [_parse_part(part, text) for part in re.split(outside_parentheses, text)]
    return schemes[0] if len(schemes) == 1 else Combined(schemes)


def _parse_part(part, text):
    name, inside = split_call("position", part, text)
    scheme = find(name)
    return scheme(read_options(scheme.name, scheme.Options, inside, OPTION_ALIASES))
