"""The test of a group of recordings: every case as recorded, but for the known differences."""

from __future__ import annotations

from pathlib import Path

from support.replay.recordings import PLUGINS, known_differences, read_group
from support.replay.replay import replayed


async def check(group: str, folder: Path = PLUGINS, *, every: int = 1) -> None:
    """Replay a group of a folder.

    Args:
        group: its name.
        folder: of the recordings.
        every: 1 for all cases, 2 for every second, and so on.

    Raises:
        AssertionError: a case differs without being known to, or no longer does.
    """
    known = known_differences(group, folder)
    wrong: list[str] = []
    cases = read_group(group, folder)
    names = {case.name for case in cases}
    async for case, found in replayed(cases[::every]):
        if found and case.name not in known.all:
            wrong += (f"{case.name}: {each}" for each in found)
        if not found and case.name in known.always:
            wrong.append(f"{case.name} is right now: take it out of known/{group}.toml")
    wrong += (f"known/{group}.toml names {each}, which is no case" for each in known.all.keys() - names)
    assert not wrong, "\n".join(wrong)
