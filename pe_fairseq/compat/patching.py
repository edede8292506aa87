"""Replace a function of fairseq's by our own, once."""

import functools


def replace(owner, name, make):
    """Set ``owner.name`` to ``make(original)``; a second call changes nothing.

    Args:
        owner: a module or class.
        make: takes the original function and returns the one to call instead.
    """
    original = getattr(owner, name)
    if hasattr(original, "replaced_by_pe_fairseq"):
        return
    wrapper = functools.wraps(original)(make(original))
    wrapper.replaced_by_pe_fairseq = original
    setattr(owner, name, wrapper)
