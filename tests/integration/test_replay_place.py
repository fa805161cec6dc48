"""Recordings of the reference picker against a running kvatlas: groups by sessions, labels and series."""

from __future__ import annotations

import pytest

from support.replay.cases import check

GROUPS = "session-scorer session-filter header-label attribute-scorer attribute-filter topology label-selector by-label"


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS.split())
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group)
