"""What happens to positions past the end of a learned table."""

from dataclasses import dataclass
from typing import Optional

from torch import Tensor

from ..errors import UserError

CHOICES = ("error", "clamp", "interpolate")


@dataclass(frozen=True)
class Beyond:
    """The rule for ids at and past ``limit``, the number of trained positions.

    ``error`` refuses them. ``clamp`` gives all of them the last trained position.
    ``interpolate`` shrinks every id by one constant factor, so that ids
    0 … length-1 spread evenly over the trained ones (position interpolation, Chen
    et al. 2023, with both ends kept): id p becomes ``p · (limit-1)/(length-1)``.
    ``length`` is given, never the length of the input at hand, so a token's
    position does not move when the text grows.

    Raises:
        UserError: ``interpolate`` without a length above ``limit``, or a length
            beside another rule.
    """

    limit: int
    rule: str = "error"
    length: Optional[int] = None

    def __post_init__(self):
        if self.rule not in CHOICES:
            raise UserError(
                f"the rule for positions beyond the table is '{self.rule}'; "
                f"it must be one of {', '.join(CHOICES)}"
            )
        if self.rule == "interpolate":
            if self.length is None or self.length <= self.limit:
                raise UserError(
                    f"interpolating positions needs a position length above the "
                    f"{self.limit} trained positions, not {self.length}"
                )
        elif self.length is not None:
            raise UserError(
                f"a position length ({self.length}) has a meaning only where "
                f"positions are interpolated, not with the rule '{self.rule}'"
            )

    def __call__(self, ids: Tensor, largest: int) -> Tensor:
        """Return ids ``(batch or 1, length)`` within the table; fractions if interpolated.

        Args:
            ids: position ids, whole numbers.
            largest: an upper bound of ``ids`` known without reading them from the
                device.

        Raises:
            UserError: an id is past what the rule allows.
        """
        if self.rule == "clamp":
            return ids.clamp(max=self.limit - 1)
        if self.refusal(largest) and (refusal := self.refusal(int(ids.max()))):
            raise UserError(refusal)
        if self.rule == "interpolate":
            return ids.double() * ((self.limit - 1) / (self.length - 1))
        return ids

    def refusal(self, position: int) -> Optional[str]:
        """Why ``position`` has no meaning under this rule, or None where it has one."""
        end = self.length if self.rule == "interpolate" else self.limit
        if self.rule == "clamp" or position < end:
            return None
        if self.rule == "interpolate":
            return (
                f"position {position} is beyond the position length {end} that the "
                "table is stretched to; give a larger position length"
            )
        return (
            f"position {position} is beyond the learned table, which has {end} positions "
            f"(0 to {end - 1}): what the model does there is not defined. Use shorter "
            "blocks, or change the rule, e.g. --model-overrides "
            "\"{'decoder_position_beyond': 'clamp'}\" (README: Positions at evaluation)"
        )
