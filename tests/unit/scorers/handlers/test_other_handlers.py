"""Handlers beside `disagg-profile-handler`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvatlas.routing.errors import SchedulingError
from kvatlas.scorers.core.decision import PROFILE
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from support.rating import decide
from support.stages import ALWAYS, FLEET, staged

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
PD = "pd-profile-handler"


@pytest.mark.parametrize("writer", ["disagg-headers-handler", "prefill-header-handler"])
def test_pd_handler_places_prefill_if_something_writes_its_header(writer: str) -> None:
    decision = decide(staged(ALWAYS, writer, handler=PD, deciderPluginName=ALWAYS).profile, REQUEST, FLEET)

    assert decision.placement is not None
    assert decision.placement.kind == "prefill-decode"
    assert decision.placement.headers == {"x-prefiller-host-port": "p0:8000"}


def test_pd_handler_without_such_a_plugin_says_that_it_runs_no_prefill_stage() -> None:
    plan = staged(ALWAYS, handler=PD, deciderPluginName=ALWAYS)

    assert decide(plan.profile, REQUEST, FLEET).stages == ()
    assert any("runs no prefill stage" in note for note in plan.notes)


def test_pd_handler_moves_requests_to_its_port() -> None:
    plan = staged(ALWAYS, "disagg-headers-handler", handler=PD, deciderPluginName=ALWAYS, primaryPort=9000)

    decision = decide(plan.profile, REQUEST, FLEET)

    assert decision.placement is not None
    assert decision.placement.port == 9000
    assert decision.placement.headers == {
        "x-prefiller-host-port": "p0:8000",
        "x-data-parallel-host-port": "d1:8000",
    }


def test_pd_handler_needs_its_decider() -> None:
    with pytest.raises(SchedulingError, match="deciderPluginName: found 'prefix-based-pd-decider'"):
        staged(handler=PD)


def test_data_parallel_handler_names_the_rank() -> None:
    plan = staged(handler="data-parallel-profile-handler", names=("decode",), primaryPort=9000)

    decision = decide(plan.profile, REQUEST, FLEET)

    assert decision.placement is not None
    assert decision.placement.port == 9000
    assert decision.placement.headers == {"x-data-parallel-host-port": "d1:8000"}


@pytest.mark.parametrize("handler", ["data-parallel-profile-handler", "single-profile-handler"])
def test_handler_of_one_profile_refuses_two(handler: str) -> None:
    with pytest.raises(SchedulingError, match="found 3 profiles, expected one"):
        staged(handler=handler)


def test_single_profile_handler_leaves_the_profile_alone() -> None:
    assert isinstance(staged(handler="single-profile-handler", names=("any",)).profile, Profile)


@pytest.mark.parametrize(
    ("value", "picked"),
    [
        pytest.param(None, "d1", id="absent"),
        pytest.param("", "d1", id="empty"),
        pytest.param("prefill", "p0", id="named"),
        pytest.param("  prefill ", "p0", id="spaces"),
    ],
)
def test_header_names_the_profile(value: str | None, picked: str) -> None:
    headers = {} if value is None else {"epp-profile": value}

    decision = decide(
        staged(handler="header-profile-handler").profile, replace(REQUEST, headers=headers), FLEET
    )

    assert decision.picked == (picked,)


@pytest.mark.parametrize("value", ["Prefill", "nobody"])
def test_header_that_names_no_profile_picks_nothing(value: str) -> None:
    plan = staged(handler="header-profile-handler", headerName="Which")

    decision = decide(plan.profile, replace(REQUEST, headers={"which": value}), FLEET)

    assert decision.picked == ()
    assert decision.placement is not None
    assert decision.placement.lacking == PROFILE


def test_header_is_not_read_with_one_profile() -> None:
    plan = staged(handler="header-profile-handler", names=("prefill",))

    assert decide(plan.profile, replace(REQUEST, headers={"epp-profile": "x"}), FLEET).picked == ("p0",)


def test_header_handler_names_the_servers_of_a_named_profile() -> None:
    plan = staged("disagg-headers-handler", handler="header-profile-handler", defaultProfile="prefill")

    decision = decide(plan.profile, REQUEST, FLEET)

    assert decision.placement is not None
    assert decision.placement.headers == {"x-prefiller-host-port": "p0:8000"}


@pytest.mark.parametrize(
    ("handler", "parameters"),
    [
        pytest.param("data-parallel-profile-handler", {"primaryPort": 0}, id="data_parallel"),
        pytest.param(PD, {"primaryPort": -1}, id="pd"),
    ],
)
def test_port_that_cannot_be_is_refused(handler: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(SchedulingError, match="primaryPort"):
        staged("prefix-based-pd-decider", handler=handler, names=("decode",), **parameters)
