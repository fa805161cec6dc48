"""Requests of which stages are done by different servers: headers, accounts, predictions and refusals."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kvatlas.fleet.audit import Verdict
from kvatlas.routing.feedback import Feedback
from kvatlas.routing.outcome import Completion, Outcome, Response, ResponseBegun, Usage
from kvatlas.routing.router import Refusal, RefusalCode, Route, RoutingRequest
from kvatlas.scorers.core.model import InFlightLoad
from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.picker_parts import PickerParts, picker_parts
from support.stages import ALWAYS, staged

ROLES = {"d": "decode", "p": "prefill"}
PREFER_CACHED = {"prefer": "if-available"}


@pytest.fixture
async def parts() -> AsyncGenerator[PickerParts]:
    """Yield a picker over a decode server and a prefill server, which prefills elsewhere what it can."""
    async with picker_parts(dict.fromkeys(ROLES, 0)) as made:
        for name, role in ROLES.items():
            made.fleet.relabel(name, {ROLE_LABEL: role})
        use(made, deciders={"prefill": ALWAYS})
        yield made


def use(parts: PickerParts, *, handler: str = "disagg-profile-handler", **settings: Any) -> None:
    profile = staged(ALWAYS, handler=handler, **settings).profile
    parts.picker.use(dataclasses.replace(parts.picker.policy, profile=profile))


async def result_of(parts: PickerParts, headers: dict[str, str] | None = None) -> Route | Refusal:
    body = json.dumps({"model": "m", "prompt": list(range(40))}).encode()
    request = RoutingRequest(path="/v1/completions", body=body, headers=headers or {})
    result = await parts.picker.route(request)
    assert isinstance(result, Route | Refusal)
    return result


async def routed(parts: PickerParts) -> Route:
    route = await result_of(parts)
    assert isinstance(route, Route)
    return route


def in_flight(parts: PickerParts) -> dict[str, InFlightLoad]:
    return {name: parts.fleet.in_flight.of(name) for name in ROLES}


def counted(parts: PickerParts, name: str, **labels: str) -> float | None:
    return parts.registry.get_sample_value(f"kvatlas_{name}_total", labels)


async def test_request_goes_to_the_decode_server_with_the_prefill_server_in_a_header(
    parts: PickerParts,
) -> None:
    route = await routed(parts)

    assert route.addresses == ("d:80",)
    assert route.request_headers == {"x-prefiller-host-port": "p:80"}
    assert counted(parts, "placements", kind="prefill-decode") == 1
    assert counted(parts, "stage_picks", stage="prefill", endpoint="p") == 1


async def test_each_server_is_booked_for_its_stage(parts: PickerParts) -> None:
    feedback = Feedback(parts.picker)

    route = await routed(parts)
    assert in_flight(parts) == {"d": InFlightLoad(1, 40), "p": InFlightLoad(1, 40)}

    feedback.begun(ResponseBegun(route, is_first_token=True, served=None))
    assert in_flight(parts) == {"d": InFlightLoad(1, 0), "p": InFlightLoad(0, 0)}

    feedback.ended(Completion("", route, Outcome.COMPLETED))
    assert in_flight(parts) == dict.fromkeys(ROLES, InFlightLoad())


async def test_bookings_of_all_stages_end_with_a_request_that_fails(parts: PickerParts) -> None:
    route = await routed(parts)

    Feedback(parts.picker).ended(Completion("", route, Outcome.ABORTED))

    assert in_flight(parts) == dict.fromkeys(ROLES, InFlightLoad())


async def test_audit_is_of_the_server_that_computed_the_prompt(parts: PickerParts) -> None:
    route = await routed(parts)
    usage = Usage(prompt_tokens=40, cached_tokens=0)

    Feedback(parts.picker).ended(
        Completion("", route, Outcome.COMPLETED, response=Response(status=200, usage=usage))
    )

    audited = parts.fleet.audit.of("p")
    assert audited is not None
    assert audited.verdicts[Verdict.GOOD] == 1
    assert parts.fleet.audit.of("d") is None


async def test_count_of_the_whole_prompt_is_the_decode_servers_and_not_audited(parts: PickerParts) -> None:
    route = await routed(parts)
    usage = Usage(prompt_tokens=40, cached_tokens=39)  # more than whole blocks of 16 tokens

    Feedback(parts.picker).ended(
        Completion("", route, Outcome.COMPLETED, response=Response(status=200, usage=usage))
    )

    assert (parts.fleet.audit.of("p"), parts.fleet.audit.of("d")) == (None, None)


async def test_role_changes_without_restart(parts: PickerParts) -> None:
    parts.fleet.relabel("d", {ROLE_LABEL: "prefill"})
    parts.fleet.relabel("p", {ROLE_LABEL: "decode"})

    route = await routed(parts)

    assert route.addresses == ("p:80",)
    assert route.request_headers == {"x-prefiller-host-port": "d:80"}


async def test_request_without_a_server_for_a_stage_gets_503(parts: PickerParts) -> None:
    parts.fleet.relabel("p", {ROLE_LABEL: "encode"})

    refusal = await result_of(parts)

    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.SERVICE_UNAVAILABLE
    assert "a server for its prefill stage" in refusal.message
    assert refusal.dropped_reason == "rejected-no-endpoints"
    assert counted(parts, "stages_missing", stage="prefill") == 1
    assert in_flight(parts) == dict.fromkeys(ROLES, InFlightLoad())


async def test_request_without_a_decode_server_gets_429_as_from_the_reference(parts: PickerParts) -> None:
    parts.fleet.relabel("d", {ROLE_LABEL: "prefill"})

    refusal = await result_of(parts)

    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.RESOURCE_EXHAUSTED


async def test_request_only_for_a_cache_is_refused_before_anything_is_booked(parts: PickerParts) -> None:
    refusal = await result_of(parts, PREFER_CACHED)

    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.PRECONDITION_FAILED
    assert in_flight(parts) == dict.fromkeys(ROLES, InFlightLoad())


async def test_request_that_names_no_profile_is_bad(parts: PickerParts) -> None:
    use(parts, handler="header-profile-handler")

    refusal = await result_of(parts, {"epp-profile": "nobody"})

    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.BAD_REQUEST


async def test_request_to_a_rank_goes_to_the_port_of_its_sidecar(parts: PickerParts) -> None:
    use(parts, handler="data-parallel-profile-handler", names=("decode",), primaryPort=9000)

    route = await routed(parts)

    assert route.addresses == ("d:9000",)
    assert route.request_headers == {"x-data-parallel-host-port": "d:80"}
