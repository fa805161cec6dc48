"""Recordings of the reference picker against a running kvatlas: groups of files and of what is reported."""

from __future__ import annotations

import pytest

from support.replay.cases import check

GROUPS = "startup default reporter identity"


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS.split())
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group)
