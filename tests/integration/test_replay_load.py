"""Recordings of the reference picker against a running kvatlas: groups by load and latency."""

from __future__ import annotations

import pytest

from support.replay.cases import check

GROUPS = "queue running kv load-aware lora utilization active-request token-load latency admitter"


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS.split())
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group)
