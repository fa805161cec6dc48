"""Sizes of the CPU tier to choose from, and the price of a GiB, without which the largest would always be best."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 8


@dataclass(frozen=True, slots=True)
class CpuSizes:
    """A range of sizes in eight steps.

    Attributes:
        low: current GiB per server.
        high: maximum GiB, more than `low`.
        price_s: seconds by which a GiB must improve the objective; None for the average improvement from `low` to `high`.
            With this average, the size with the smallest sum of objective and price is the knee of the curve: the point
            farthest below the line between its ends (Satopaa et al., Finding a "Kneedle" in a Haystack, ICDCS workshops
            2011).
    """

    low: float
    high: float
    price_s: float | None = None

    @property
    def step(self) -> float:
        """Difference between two sizes in GiB."""
        return (self.high - self.low) / STEPS

    @property
    def all(self) -> tuple[float, ...]:
        """All sizes, ascending."""
        return tuple(self.low + self.step * number for number in range(STEPS + 1))

    def price(self, at_low: float, at_high: float) -> float:
        """Return the price of a GiB in seconds, from the objective at both ends; never below 0."""
        return max(0.0, (at_low - at_high) / (self.high - self.low)) if self.price_s is None else self.price_s
