"""The test of a group of recordings: every case as recorded, but for the known differences."""

from __future__ import annotations

from pathlib import Path

from support.replay.recordings import PLUGINS, known_differences, read_group
from support.replay.replay import replayed


async def check(group: str, folder: Path = PLUGINS) -> None:
    """Replay a group of a folder.

    Raises:
        AssertionError: a case differs without being known to, or no longer does.
    """
    known = known_differences(group, folder)
    wrong: list[str] = []
    names: set[str] = set()
    async for case, found in replayed(read_group(group, folder)):
        names.add(case.name)
        if found and case.name not in known.all:
            wrong += (f"{case.name}: {each}" for each in found)
        if not found and case.name in known.always:
            wrong.append(f"{case.name} is right now: take it out of known/{group}.toml")
    wrong += (f"known/{group}.toml names {each}, which is no case" for each in known.all.keys() - names)
    assert not wrong, "\n".join(wrong)
