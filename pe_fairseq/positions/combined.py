"""Several schemes at once: what each contributes adds up."""

from ..errors import UserError
from .scheme import Scheme


class Combined(Scheme):
    """A sum of schemes of different families, such as ``learned+shaw``.

    Raises:
        UserError: two schemes share a family, or one combines with nothing.
    """

    Options = None

    def __init__(self, parts):
        families = {}
        for part in parts:
            if part.family is None:
                raise UserError(f"'{part.name}' stands alone; leave it out of the sum")
            if part.family in families:
                raise UserError(
                    f"'{families[part.family]}' and '{part.name}' are two schemes of one "
                    f"family ({part.family}); keep one of them"
                )
            families[part.family] = part.name
        self._parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.family = None
        self.places = tuple(dict.fromkeys(place for part in parts for place in part.places))
        self.paper = "; ".join(part.paper for part in parts)
        self.translation_invariant = all(part.translation_invariant for part in parts)
        self.two_sided = all(part.two_sided for part in parts)
        for promise in ("length_dependent", "bounded", "needs_scores", "decays"):
            setattr(self, promise, any(getattr(part, promise) for part in parts))

    @property
    def parts(self):
        return self._parts

    def longest(self, size):
        limits = (part.longest(size) for part in self._parts)
        return min((limit for limit in limits if limit is not None), default=None)

    def refusal(self, position):
        refusals = (part.refusal(position) for part in self._parts)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def __str__(self):
        return "+".join(map(str, self._parts))
