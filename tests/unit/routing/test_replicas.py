"""A picker among replicas."""

from __future__ import annotations

import time

from kvatlas.fleet.replicas.knowledge import Knowledge
from kvatlas.routing.router import Route, RoutingRequest
from kvatlas.tokenization.eventual import Known
from support.picker_parts import picker_parts

IDLE = dict.fromkeys("abcdefgh", 0)


async def test_replicas_break_the_ties_of_a_request_alike() -> None:
    picks: list[list[str]] = []
    for _ in range(2):
        async with picker_parts(IDLE, knowledge=Knowledge(time.monotonic)) as parts:
            found: list[str] = []
            for number in range(40):
                result = parts.picker.route(
                    RoutingRequest("/", has_body=False, request_id=f"request {number}")
                )
                assert isinstance(result, Known)
                assert isinstance(result.value, Route)
                found.append(result.value.decision.picked[0])
            picks.append(found)

    assert picks[0] == picks[1]
    assert len(set(picks[0])) > 4
