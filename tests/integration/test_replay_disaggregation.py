"""Recordings of the reference picker against a running kvatlas: encode, prefill and decode on different servers."""

from __future__ import annotations

import pytest

from support.replay.cases import check
from support.replay.recordings import DISAGGREGATION, groups


@pytest.mark.slow
@pytest.mark.parametrize("group", groups(DISAGGREGATION))
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group, DISAGGREGATION)
