"""Replay of whole recordings: what is different, case by case."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from pathlib import Path

from support.replay.compare import differences, scores_differ
from support.replay.play import Play
from support.replay.recordings import Json, Recording
from support.replay.running import RefusedStartError, Running, running

SHARED = frozenset(
    "path bad wire headers subset parser response queue running kv load-aware header-profile roles failures legacy".split()
)
"""Groups whose cases leave nothing behind: those with one configuration and the same series run on one picker."""


async def replayed(recordings: Sequence[Recording]) -> AsyncGenerator[tuple[Recording, list[str]]]:
    """Yield each recording with its differences, none if all is the same."""
    together = [[*cases] for _, cases in groupby(recordings, _picker_of)]
    for cases in together:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                picker = await stack.enter_async_context(running(cases[0], folder))
            except RefusedStartError as error:
                for case in cases:
                    yield case, [] if case.refused else [f"does not start: {error}"]
                continue
            for case in cases:
                yield case, await _played(picker, case)


def _picker_of(case: Recording) -> str:
    """Return text that is equal for cases which may run on one picker."""
    if case.group not in SHARED:
        return case.name
    # a series that is missing must never have been there, since its last value may count
    return case.start + str([sorted(said or ()) for said in case.metrics.values()])


async def _played(picker: Running, case: Recording) -> list[str]:
    if case.refused:
        return [f"starts; the reference says {case.refused}"]
    await picker.say(dict(case.metrics))
    play = Play(picker)
    counted: dict[str, int] = case.data.get("placements", {})
    before = await play.placements() if counted else {}
    found: list[str] = []
    observed: list[Json] = []
    try:
        for number, step in enumerate(case.steps):
            observed.append(await play.step(step))
            found += (f"step {number}: {each}" for each in differences(step, observed[-1]))
    finally:
        await play.close()
    if counted:
        now = await play.placements()
        grown = {kind: n for kind in now if (n := now[kind] - before.get(kind, 0))}
        found += [] if grown == counted else [f"placements {grown}, not {counted}"]
    found += _variants(case, observed)
    return found


def _variants(case: Recording, observed: Sequence[Json]) -> Iterator[str]:
    """Yield a difference if no recorded outcome of a start is the observed one."""
    variants: list[Json] = case.data.get("variants", [])
    sends = [each for each in observed if "picked" in each]
    if variants and not any(_is_variant(each["sends"], sends) for each in variants):
        yield f"no recorded variant: {[(each['picked'], each.get('scores')) for each in sends]}"


def _is_variant(recorded: Sequence[Json], observed: Sequence[Json]) -> bool:
    return all(
        one["picked"] == other["picked"] and not scores_differ(one["scores"], other.get("scores", {}))
        for one, other in zip(recorded, observed, strict=True)
    )
