"""The test of a group of recordings: every case as recorded, but for the known differences."""

from __future__ import annotations

from support.replay.recordings import known_differences, read_group
from support.replay.replay import replayed


async def check(group: str) -> None:
    """Replay a group.

    Raises:
        AssertionError: a case differs without being known to, or no longer does.
    """
    known = known_differences(group)
    wrong: list[str] = []
    names: set[str] = set()
    async for case, found in replayed(read_group(group)):
        names.add(case.name)
        if found and case.name not in known.all:
            wrong += (f"{case.name}: {each}" for each in found)
        if not found and case.name in known.always:
            wrong.append(f"{case.name} is right now: take it out of known/{group}.toml")
    wrong += (f"known/{group}.toml names {each}, which is no case" for each in known.all.keys() - names)
    assert not wrong, "\n".join(wrong)
