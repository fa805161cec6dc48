"""The test of a group of recordings: every case as recorded, but for what is known."""

from __future__ import annotations

from support.sidecar_replay.play import differences
from support.sidecar_replay.recordings import known_differences, read_group


async def check(group: str, *, first: int = 0, every: int = 1) -> None:
    """Replay a group on the stand-in: its case `first`, and every `every`th behind it.

    Raises:
        AssertionError: a case differs without being known to, or no longer does.
    """
    known, wrong = known_differences(), list[str]()
    played = [case for case in read_group(group) if known.reason_to_leave_out(case) is None]
    for case in played[first::every]:
        found = await differences(case)
        if found and case.name not in known.deliberate:
            wrong += (f"{case.name}: {each}" for each in found)
        if not found and case.name in known.deliberate:
            wrong.append(f"{case.name} is as recorded: take it out of known.toml")
    assert not wrong, "\n".join(wrong)
