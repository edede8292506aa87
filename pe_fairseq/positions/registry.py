"""The registry: every position scheme by its name.

Commands, tables and the parametrised tests are made from ``SCHEMES``; a scheme
joins them by being registered.
"""

from ..errors import UserError, nearest

SCHEMES = {}
ALIASES = {}


def register(name, *aliases):
    """Class decorator that registers a ``Scheme`` as ``name`` and its aliases."""

    def add(scheme):
        for word in (name, *aliases):
            if word in SCHEMES or word in ALIASES:
                raise ValueError(f"position scheme {word!r} is registered already")
        scheme.name = name
        SCHEMES[name] = scheme
        ALIASES.update(dict.fromkeys(aliases, name))
        return scheme

    return add


def find(name):
    """Return the scheme class called ``name`` (or an alias of it).

    Raises:
        UserError: no scheme has that name; the message lists what exists.
    """
    name = ALIASES.get(name, name)
    if name not in SCHEMES:
        raise UserError(
            f"unknown position scheme '{name}'{nearest(name, [*SCHEMES, *ALIASES])}; "
            f"there are: {', '.join(SCHEMES)}"
        )
    return SCHEMES[name]
