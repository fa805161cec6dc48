"""Some hundred hostile request bodies against the running server; `make hostile` sends them for a minute."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from hostile.generators.bodies import inputs
from support.ext_proc import BUFFERED, DUPLEX
from support.hostile import attacked

pytestmark = pytest.mark.slow

N_BODIES = 300


async def test_every_body_gets_a_reply_in_both_modes_and_nothing_ends(tmp_path: Path) -> None:
    bodies = inputs(Random(21))
    async with attacked(tmp_path) as target:
        for number in range(N_BODIES):
            path, body = next(bodies)
            await target.send_body(path, body, config=(DUPLEX, BUFFERED)[number % 2])
        await target.look()
        n_failed = await target.total("kvatlas_tasks_failed_total")
        n_held = await target.total("kvatlas_held_bytes")

    assert target.replies <= {"request_body", "request_headers", "immediate_response"}
    assert n_failed == 0
    assert n_held == 0
