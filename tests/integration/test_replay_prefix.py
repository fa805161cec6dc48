"""Recordings of the reference picker against a running kvatlas: groups by prompts."""

from __future__ import annotations

import pytest

from support.replay.cases import check

GROUPS = "approx no-hit-lru affinity-filter burst mm context-length"


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS.split())
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group)
