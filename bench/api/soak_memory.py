"""Whether memory grows: the slope of samples, and its error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS = 8
"""Parts whose means are compared: neighbouring samples are not independent, means of parts nearly are."""

GROWTH, GROWTH_BYTES, MORE_FILES = 0.05, 16 * 2**20, 8
"""Allowed growth: share and bytes of memory over a run, and open files from the second quarter to the last."""

NOISE = 3.0
"""Standard errors that a slope of memory may have by chance."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through samples.

    Attributes:
        slope: growth per sample.
        error: standard error of the slope.
    """

    slope: float
    error: float


def trend(samples: Sequence[float]) -> Trend:
    """Return the trend of evenly spaced samples; without error if there are too few to tell."""
    size = max(1, len(samples) // BLOCKS)
    means = [statistics.fmean(samples[at : at + size]) for at in range(0, len(samples) - size + 1, size)]
    if len(means) < 3:
        return Trend(0.0, math.inf)
    places = range(len(means))
    line = statistics.linear_regression(places, means)
    rest = sum(
        (mean - line.intercept - line.slope * place) ** 2 for place, mean in zip(places, means, strict=True)
    )
    spread = sum((place - statistics.fmean(places)) ** 2 for place in places)
    return Trend(line.slope / size, math.sqrt(rest / (len(means) - 2) / spread) / size)


def grown(memory: Sequence[float], files: Sequence[float], *, every_s: float) -> list[str]:
    """Return what has grown, and print the slope of memory; samples are `every_s` apart."""
    quarter = len(memory) // 4
    if not quarter:
        return ["the run is too short to tell whether memory grows"]
    second_half = memory[2 * quarter :]
    found = trend(second_half)
    print(
        f"memory of the second half: {statistics.median(second_half) / 2**20:.0f} MiB, "
        f"slope {found.slope * 3600 / every_s / 2**20:+.1f} +- {found.error * 3600 / every_s / 2**20:.1f} MiB per hour"
    )
    problems: list[str] = []
    # what the slope adds over the run, less what its noise explains
    certain = (found.slope - NOISE * found.error) * len(memory)
    if certain > GROWTH * statistics.median(memory[quarter : 2 * quarter]) + GROWTH_BYTES:
        problems.append(f"memory grows, by {certain / 2**20:.0f} MiB at least over a run")
    if statistics.median(files[-quarter:]) > statistics.median(files[quarter : 2 * quarter]) + MORE_FILES:
        problems.append(f"open files grew to {files[-1]:.0f}")
    return problems
