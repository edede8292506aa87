"""Replace a function of fairseq's by our own, once."""

import functools


def replace(owner, name, make):
    """Set ``owner.name`` to ``make(original)``; the same ``make`` again changes nothing.

    Args:
        owner: a module or class; a classmethod stays one.
        make: takes the original function and returns the one to call instead.
    """
    original = vars(owner)[name]
    is_classmethod = isinstance(original, classmethod)
    function = original.__func__ if is_classmethod else original
    makers = getattr(function, "made_by", ())
    if make in makers:
        return
    wrapper = functools.wraps(function)(make(function))
    wrapper.made_by = (*makers, make)
    setattr(owner, name, classmethod(wrapper) if is_classmethod else wrapper)
