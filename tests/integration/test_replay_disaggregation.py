"""Recordings of the reference picker against a running kvatlas: encode, prefill and decode on different servers."""

from __future__ import annotations

import os

import pytest

from support.replay.cases import check
from support.replay.recordings import DISAGGREGATION, groups

EVERY = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "ci" else 6
"""`make slow` has all cases; a start of the picker takes 0.4 s of CPU, and most cases need one."""


@pytest.mark.slow
@pytest.mark.parametrize("group", groups(DISAGGREGATION))
async def test_group_is_answered_as_recorded(group: str) -> None:
    await check(group, DISAGGREGATION, every=EVERY)
