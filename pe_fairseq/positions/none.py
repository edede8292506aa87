"""No positions at all: a decoder then knows order from its causal mask alone."""

from .registry import register
from .scheme import Scheme


@register("none", "nope")
class NoPositions(Scheme):
    """Tokens carry no position ("NoPE", Haviv et al. 2022; setting 1 of Wang et al. 2021)."""

    family = None
    places = ()
    paper = "Haviv et al. 2022"
    translation_invariant = True
