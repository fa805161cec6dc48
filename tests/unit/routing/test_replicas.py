"""A picker among replicas."""

from __future__ import annotations

import time

from kvatlas.fleet.replicas.knowledge import Knowledge
from kvatlas.routing.router import Route, RoutingRequest
from kvatlas.tokenization.eventual import Known
from support.picker_parts import picker_parts

IDLE = dict.fromkeys("abcdefgh", 0)


async def test_replicas_break_the_ties_of_a_request_alike() -> None:
    picks: list[dict[int, str]] = []
    for numbers in (range(40), reversed(range(40))):
        async with picker_parts(IDLE, knowledge=Knowledge(time.monotonic)) as parts:
            found: dict[int, str] = {}
            for number in numbers:
                result = parts.picker.route(
                    RoutingRequest("/", has_body=False, request_id=f"request {number}")
                )
                assert isinstance(result, Known)
                assert isinstance(result.value, Route)
                found[number] = result.value.decision.picked[0]
            picks.append(found)

    assert picks[0] == picks[1]
    assert len(set(picks[0].values())) > 4
