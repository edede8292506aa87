"""Replace a function of fairseq's by our own, once."""

import functools


def replace(owner, name, make):
    """Set ``owner.name`` to ``make(original)``; the same ``make`` again changes nothing.

    Args:
        owner: a module or class; a classmethod or staticmethod stays one.
        make: takes the original function and returns the one to call instead.
    """
    original = vars(owner)[name]
    kind = type(original) if isinstance(original, (classmethod, staticmethod)) else None
    function = original if kind is None else original.__func__
    makers = getattr(function, "made_by", ())
    if make in makers:
        return
    wrapper = functools.wraps(function)(make(function))
    wrapper.made_by = (*makers, make)
    setattr(owner, name, wrapper if kind is None else kind(wrapper))
