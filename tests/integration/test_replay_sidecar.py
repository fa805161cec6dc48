"""Recordings of the reference sidecar against the stand-in, so that the stand-in is honest; and against the reference itself."""

from __future__ import annotations

import pytest

from support.sidecar import reference
from support.sidecar_replay.cases import check
from support.sidecar_replay.play import differences
from support.sidecar_replay.recordings import Known, groups, known_differences, read_group


@pytest.mark.parametrize("group", groups())
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group)


def test_all_recordings_are_there_and_the_known_ones_among_them() -> None:
    cases = [case for group in groups() for case in read_group(group)]
    known = known_differences()

    assert len(cases) == 568
    assert known.deliberate.keys() <= {case.name for case in cases}
    for name in known.left_out:
        alone = Known({name: "of this test"}, {})
        assert any(alone.reason_to_leave_out(case) for case in cases), f"known.toml names {name}: no case"


@pytest.mark.slow
@pytest.mark.skipif(not reference.is_there(), reason=reference.NEEDS)
@pytest.mark.parametrize("group", groups())
async def test_reference_is_as_recorded_when_the_replay_is_right(group: str) -> None:
    known = known_differences()
    cases = [case for case in read_group(group) if known.reason_to_leave_out(case) is None]
    # What a client sees of a process that ends is a matter of chance.
    sure = [case for case in cases if "note" not in case.data]

    found = {case.name: await differences(case, reference.reference_sidecar) for case in sure}

    assert not {name: each for name, each in found.items() if each}
