"""Objectives of requests beside what their responses took."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvatlas.routing.attainment import attained
from kvatlas.routing.outcome import Completion, Outcome, Response, Usage, UsageGap
from kvatlas.routing.router import Route
from kvatlas.scorers.core.decision import Origin
from kvatlas.scorers.core.slo import Slo
from support.candidates import endpoint
from support.rating import routed_to

STREAMED = Response(
    status=200,
    usage=Usage(output_tokens=11),
    n_events=99,
    time_to_first_byte_s=0.2,
    time_to_end_s=0.7,
    shows_tokens=True,
)
WHOLE = Response(status=200, usage=Usage(output_tokens=11), time_to_first_byte_s=0.7, time_to_end_s=0.7)


def completion(
    slo: Slo | None, response: Response = STREAMED, n_choices: int = 1, n_prompts: int = 1, **more: Any
) -> Completion:
    origin = Origin("r", "", "", 0, "default-flow", slo)
    decision = routed_to(endpoint("e"), origin=origin, n_choices=n_choices, n_prompts=n_prompts)
    route = Route(("e:8000",), decision)
    return replace(Completion("r", route, Outcome.COMPLETED, response=response), **more)


@pytest.mark.parametrize(
    ("slo", "more", "found"),
    [
        pytest.param(None, {}, {}, id="none_named"),
        pytest.param(Slo(200.0, 50.0), {}, {"ttft": "met", "tpot": "met"}, id="both_met"),
        pytest.param(Slo(199.0, 49.0), {}, {"ttft": "missed", "tpot": "missed"}, id="both_missed"),
        pytest.param(Slo(200.0, None), {}, {"ttft": "met"}, id="one_named"),
        pytest.param(Slo(200.0, 50.0), {"n_choices": 2}, {"ttft": "met", "tpot": "missed"}, id="two_choices"),
        pytest.param(
            Slo(200.0, 50.0), {"n_prompts": 2}, {"ttft": "met", "tpot": "unknown"}, id="several_prompts"
        ),
        pytest.param(
            Slo(600.0, 50.0), {"response": WHOLE}, {"ttft": "missed", "tpot": "unknown"}, id="not_streamed"
        ),
        pytest.param(
            Slo(200.0, 50.0),
            {"outcome": Outcome.ABORTED},
            {"ttft": "unknown", "tpot": "unknown"},
            id="client_left",
        ),
        pytest.param(
            Slo(900.0, None),
            {"response": Response(status=500, time_to_first_byte_s=0.1)},
            {"ttft": "unknown"},
            id="failed",
        ),
        pytest.param(
            Slo(900.0, None),
            {"outcome": Outcome.ROUTED, "response": Response()},
            {"ttft": "unknown"},
            id="hidden",
        ),
        pytest.param(Slo(900.0, None), {"route": None, "outcome": Outcome.REFUSED}, {}, id="refused"),
    ],
)
def test_each_named_objective_is_met_missed_or_unknown(
    slo: Slo | None, more: dict[str, Any], found: dict[str, str]
) -> None:
    assert {str(each): str(verdict) for each, verdict in attained(completion(slo, **more))} == found


@pytest.mark.parametrize(
    ("more", "tpot_s"),
    [
        pytest.param({}, 0.05, id="counted_by_the_engine"),
        pytest.param({"usage": UsageGap.ABSENT, "n_events": 6}, 0.1, id="counted_by_events"),
        pytest.param({"usage": Usage(output_tokens=1)}, None, id="one_token"),
        pytest.param({"usage": None, "n_events": 0}, None, id="not_read"),
        pytest.param({"shows_tokens": False}, None, id="not_streamed"),
        pytest.param({"time_to_first_byte_s": None}, None, id="no_body"),
    ],
)
def test_time_per_output_token_is_that_of_the_later_ones(more: dict[str, Any], tpot_s: float | None) -> None:
    fields = {name: getattr(STREAMED, name) for name in Response.__struct_fields__}
    found = Response(**fields | more).tpot_s(routed_to(endpoint("e")))

    assert found == (None if tpot_s is None else pytest.approx(tpot_s))


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        pytest.param({}, True, id="picked"),
        pytest.param({"served": "e:8000"}, True, id="served_by_the_picked"),
        pytest.param({"served": "other:8000"}, False, id="served_by_a_fallback"),
        pytest.param({"outcome": Outcome.ABORTED}, False, id="cut_off"),
        pytest.param({"route": None}, False, id="not_routed"),
    ],
)
def test_time_per_output_token_is_of_the_picked_endpoint(more: dict[str, Any], is_known: bool) -> None:
    assert (completion(None, **more).tpot_s is not None) is is_known


@pytest.mark.parametrize(
    ("response", "n_choices", "tpot_s", "n_tokens"),
    [
        pytest.param({"usage": Usage(output_tokens=44)}, 4, 0.05, 11, id="counted_by_the_engine"),
        pytest.param({"usage": UsageGap.ABSENT, "n_events": 24}, 4, 0.1, None, id="counted_by_events"),
        pytest.param({"usage": Usage(output_tokens=7)}, 4, None, 2, id="no_second_token_in_the_mean"),
        pytest.param({"usage": Usage(output_tokens=11)}, 16_384, None, 0, id="fewer_tokens_than_choices"),
        pytest.param({"usage": UsageGap.ABSENT, "n_events": 0}, 4, None, None, id="nothing_counted"),
    ],
)
def test_tokens_of_one_choice_count_when_the_client_wants_several(
    response: dict[str, Any], n_choices: int, tpot_s: float | None, n_tokens: int | None
) -> None:
    found = completion(None, replace(STREAMED, **response), n_choices=n_choices)

    assert (found.tpot_s, found.output_tokens) == (
        None if tpot_s is None else pytest.approx(tpot_s),
        n_tokens,
    )


def test_neither_times_nor_lengths_are_those_of_one_response_when_there_are_several_prompts() -> None:
    found = completion(None, n_prompts=2)

    assert (found.tpot_s, found.output_tokens) == (None, None)
