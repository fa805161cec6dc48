"""Time to find which endpoint holds how much of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.progress import Progress

from ..columns import Column, Matcher
from ..filled import Filled
from ..fleet import HIT, Blocks
from ..results import Figure, Row, Samples, Section, Target
from ..sizes import Size

_WARM = f"{HIT}, asked again at once"
_US = 1e-6

Medians = dict[str, dict[Column, Figure]]
"""Kind of prompt -> figures by column."""


async def measure_match(filled: Filled, size: Size, progress: Progress) -> list[Section]:
    """Measure two sections: the index alone, and the whole Atlas. Dynamo's columns are the same in both."""
    indexes, systems = [
        await _medians(matchers, filled.fleet.prompts, size, progress)
        for matchers in (filled.indexes, filled.systems)
    ]
    return [
        _section("match", "Match, index alone", indexes, systems, Target(3, Column.RADIX_TREE)),
        _section("atlas", "Match, whole Atlas", systems, indexes, Target(15, Column.SERVICE)),
    ]


async def _medians(
    matchers: Mapping[Column, Matcher], prompts: dict[str, list[Blocks]], size: Size, progress: Progress
) -> Medians:
    taken = {label: Samples() for label in [*prompts, _WARM]}
    for number in progress.track(range(size.match_rounds), description="match"):
        for label, samples in taken.items():
            asked = prompts[HIT if label == _WARM else label]
            prompt = asked[number * 7 % len(asked)]
            for column, matcher in _rotated(list(matchers.items()), number):
                if label == _WARM:
                    await matcher.timed_match(prompt)
                samples.add(column, (await matcher.timed_match(prompt))[0])
    return {label: samples.medians(per=_US, with_p99=True) for label, samples in taken.items()}


def _rotated(matchers: Sequence[tuple[Column, Matcher]], number: int) -> Sequence[tuple[Column, Matcher]]:
    """Return the matchers with another one first each time, since the next one finds the processor's caches used up."""
    first = number % len(matchers)
    return [*matchers[first:], *matchers[:first]]


def _section(name: str, title: str, own: Medians, others: Medians, target: Target) -> Section:
    rows = [
        Row(label, "us", {**others[label], **figures}, target if label == HIT else None)
        for label, figures in own.items()
    ]
    return Section(name, title, rows)
