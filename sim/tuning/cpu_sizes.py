"""Sizes of the CPU tier to choose from, and what a GiB must bring for the choice to end somewhere."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 8


@dataclass(frozen=True, slots=True)
class CpuSizes:
    """A range of sizes, tried in eighths.

    Attributes:
        low: GiB of a server as they are.
        high: GiB at most, more than `low`.
        price_s: seconds of the objective that a GiB must bring. None: what it brings on average from `low` to `high`. The
            size where objective and price together are smallest is then the knee of the curve, the point farthest
            beneath the line between its ends (Satopaa et al., Finding a "Kneedle" in a Haystack, ICDCS workshops 2011).
    """

    low: float
    high: float
    price_s: float | None = None

    @property
    def step(self) -> float:
        """GiB between two sizes."""
        return (self.high - self.low) / STEPS

    @property
    def all(self) -> tuple[float, ...]:
        """Every size, ascending."""
        return tuple(self.low + self.step * number for number in range(STEPS + 1))

    def price(self, at_low: float, at_high: float) -> float:
        """Seconds a GiB must bring, where the objective is `at_low` and `at_high` at the ends; never below 0."""
        return max(0.0, (at_low - at_high) / (self.high - self.low)) if self.price_s is None else self.price_s
