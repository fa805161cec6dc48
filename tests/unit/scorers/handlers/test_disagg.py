"""`disagg-profile-handler`: which servers the stages of a request get, and what happens if one has none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.plan import make_plan
from kvatlas.routing.plan.weights import weights_of, with_weights
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from support.rating import decide
from support.stages import ALWAYS, BY_PREFIX, FLEET, MEDIA, server, staged

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
WITH_MEDIA = replace(REQUEST, media=(1,))
NO_PREFILL = tuple(each for each in FLEET if not each.name.startswith("p"))


def placed(
    *more: str | dict[str, Any],
    fleet: tuple[Candidate, ...] = FLEET,
    request: RequestView = REQUEST,
    **settings: Any,
) -> Decision:
    return decide(staged(*more, **settings).profile, request, fleet)


def stages_of(decision: Decision) -> dict[str, tuple[str, ...]]:
    return {each.name: each.decision.picked for each in decision.stages}


def kind_of(decision: Decision) -> str:
    assert decision.placement is not None
    return decision.placement.kind


@pytest.mark.parametrize(
    ("deciders", "request_", "stages", "kind"),
    [
        pytest.param({}, REQUEST, {}, "decode-only", id="no_decider"),
        pytest.param({"prefill": ALWAYS}, REQUEST, {"prefill": ("p0",)}, "prefill-decode", id="prefill"),
        pytest.param({"encode": MEDIA}, REQUEST, {}, "decode-only", id="no_media"),
        pytest.param({"encode": MEDIA}, WITH_MEDIA, {"encode": ("e0",)}, "encode-decode", id="media"),
        pytest.param(
            {"prefill": ALWAYS, "encode": MEDIA},
            WITH_MEDIA,
            {"encode": ("e0",), "prefill": ("p0",)},
            "encode-prefill-decode",
            id="all",
        ),
        pytest.param({"prefill": ALWAYS}, replace(REQUEST, has_body=False), {}, "decode-only", id="no_body"),
    ],
)
def test_deciders_decide_which_stages_there_are(
    deciders: dict[str, str], request_: RequestView, stages: dict[str, tuple[str, ...]], kind: str
) -> None:
    decision = placed(ALWAYS, MEDIA, deciders=deciders, request=request_)

    assert decision.picked == ("d1",)
    assert stages_of(decision) == stages
    assert kind_of(decision) == kind


def test_sidecar_gets_the_servers_of_the_stages() -> None:
    decision = placed(ALWAYS, MEDIA, deciders={"prefill": ALWAYS, "encode": MEDIA}, request=WITH_MEDIA)

    assert decision.placement is not None
    assert decision.placement.headers == {
        "x-prefiller-host-port": "p0:8000",
        "x-encoder-hosts-ports": "e0:8000",
    }


@pytest.mark.parametrize(
    ("cached", "parameters", "is_apart"),
    [
        pytest.param(0, {"nonCachedTokens": 160}, True, id="at_the_threshold"),
        pytest.param(1, {"nonCachedTokens": 160}, False, id="below"),
        pytest.param(0, {}, False, id="never_by_default"),
        pytest.param(0, {"nonCachedTokens": 1, "promptTokens": 161}, False, id="short_prompt"),
        pytest.param(0, {"nonCachedTokens": 1, "promptTokens": 160}, True, id="long_enough_prompt"),
    ],
)
def test_prefix_decides_by_what_the_decode_server_would_compute(
    cached: int, parameters: dict[str, int], is_apart: bool
) -> None:
    decider = {"type": BY_PREFIX, "parameters": parameters}
    fleet = (server("d", "decode", cached=cached), server("p", "prefill"))

    decision = placed(decider, deciders={"prefill": BY_PREFIX}, fleet=fleet)

    assert bool(decision.stages) is is_apart


def test_prefix_decides_nothing_before_a_decode_server_is_picked() -> None:
    decider = {"type": BY_PREFIX, "parameters": {"nonCachedTokens": 1}}

    decision = placed(decider, stageOrder="prefill-first", deciders={"encode": BY_PREFIX})

    assert stages_of(decision) == {"prefill": ("p0",)}


def test_server_that_is_picked_for_both_does_both() -> None:
    fleet = (server("both", "prefill-decode"), server("p", "prefill", waiting=3))

    decision = placed(ALWAYS, deciders={"prefill": ALWAYS}, fleet=fleet)

    assert decision.picked == ("both",)
    assert kind_of(decision) == "decode-only"


@pytest.mark.parametrize("order", ["prefill-first", "PREFILL_FIRST", "prefill"])
def test_prefill_first_has_the_stage_for_every_request(order: str) -> None:
    assert stages_of(placed(stageOrder=order)) == {"prefill": ("p0",)}


def test_older_parameters_mean_the_same() -> None:
    decision = placed(ALWAYS, MEDIA, deciderPluginName=ALWAYS, encodeDeciderPluginName=MEDIA)

    assert stages_of(decision) == {"prefill": ("p0",)}


def test_older_parameters_name_the_profiles() -> None:
    names = {"decodeProfile": "d", "prefillProfile": "p", "encodeProfile": "e"}
    plan = staged(
        ALWAYS, MEDIA, names=("d", "p", "e"), deciderPluginName=ALWAYS, encodeDeciderPluginName=MEDIA, **names
    )

    draws = iter([0.0, 0.9, 0.9])
    decision = decide(plan.profile, WITH_MEDIA, [server(each, None) for each in "ab"], rng=draws.__next__)

    assert decision.placement is not None
    assert decision.placement.profile == "d"
    assert [(each.name, each.profile) for each in decision.stages] == [("encode", "e"), ("prefill", "p")]


def test_no_decode_server_is_no_stage_at_all() -> None:
    decision = placed(ALWAYS, deciders={"prefill": ALWAYS}, fleet=FLEET[2:])

    assert decision.picked == ()
    assert stages_of(decision) == {}
    assert decision.placement is not None
    assert decision.placement.lacking is None


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_wanted_stage_without_a_server_leaves_nothing_picked(order: str) -> None:
    deciders = {"prefill": ALWAYS} if order == "decode-first" else {}

    decision = placed(ALWAYS, stageOrder=order, deciders=deciders, fleet=NO_PREFILL)

    assert decision.picked == ()
    assert decision.placement is not None
    assert decision.placement.lacking == "prefill"


def test_wanted_stage_without_a_server_is_left_out_if_the_file_says_so() -> None:
    decision = placed(ALWAYS, deciders={"prefill": ALWAYS}, fleet=NO_PREFILL, missingStage="skip")

    assert decision.picked == ("d1",)
    assert kind_of(decision) == "decode-only"


def test_fallback_profile_picks_one_server_for_all() -> None:
    fleet = (*NO_PREFILL[:1], server("alone", None))

    decision = placed(
        ALWAYS,
        names=("decode", "prefill", "any"),
        deciders={"prefill": ALWAYS},
        profiles={"fallback": "any"},
        fleet=fleet,
    )

    assert decision.picked == ("alone",)
    assert kind_of(decision) == "aggregated-fallback"


def test_profile_that_no_stage_names_is_never_run() -> None:
    plan = staged(ALWAYS, handler="disagg-profile-handler", names=("decode", "prefill", "third"))

    assert decide(plan.profile, REQUEST, FLEET).picked == ("d1",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"stageOrder": "decode first"}, "stageOrder: found 'decode first'", id="order"),
        pytest.param(
            {"stageOrder": "prefill-first", "deciders": {"prefill": ALWAYS}},
            "with stageOrder: prefill-first every request has a prefill stage",
            id="prefill_first_with_a_decider",
        ),
        pytest.param(
            {"deciders": {"prefill": "nobody"}},
            "found 'nobody', expected the name of a decider",
            id="decider",
        ),
        pytest.param(
            {"deciders": {"prefill": "decode-filter"}},
            "found 'decode-filter', expected the name",
            id="no_decider",
        ),
        pytest.param({"profiles": {"decode": "x"}}, "found 'x', expected a profile", id="decode_profile"),
        pytest.param({"profiles": {"fallback": "x"}}, "found 'x', expected a profile", id="fallback_profile"),
        pytest.param(
            {"profiles": {"fallback": "decode"}}, "expected a profile of its own", id="fallback_is_a_stage"
        ),
        pytest.param(
            {"profiles": {}, "prefillProfile": "prefill"},
            "prefillProfile: found beside profiles",
            id="both_forms",
        ),
    ],
)
def test_file_that_contradicts_itself_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SchedulingError, match=message):
        staged(ALWAYS, **settings)


def test_second_handler_is_refused() -> None:
    with pytest.raises(SchedulingError, match="a second profile handler"):
        staged("header-profile-handler")


def test_two_profiles_of_one_name_are_refused() -> None:
    with pytest.raises(SchedulingError, match="found 'decode', the name of another profile too"):
        staged(names=("decode", "decode"))


def test_weights_are_changed_by_profile() -> None:
    plan = staged()
    changed = make_plan(with_weights(plan.config, plan, {"prefill/queue-scorer": 3}))

    assert weights_of(changed) == {
        "decode/queue-scorer": 1,
        "prefill/queue-scorer": 3,
        "encode/queue-scorer": 1,
    }
