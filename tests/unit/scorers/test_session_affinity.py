"""`session-affinity-scorer`: both strategies, invalid tokens, bounds."""

from __future__ import annotations

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.base import LearnsFromPicks, MarksResponses
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.session_affinity import (
    MAX_SESSION_ID_CHARS,
    MAX_SESSIONS,
    EncodedEndpointScorer,
    SessionIdScorer,
)
from support.built import built
from support.candidates import endpoint
from support.rating import rated, routed_to

FLEET = [endpoint("a"), endpoint("b")]
HEADER_OF_B = "Yg=="


def request(now: float = 0.0, **headers: str) -> RequestView:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestView(model="m", now=now, headers=named)


def sent_to(name: str) -> Decision:
    return routed_to(endpoint(name))


@pytest.mark.parametrize(
    ("token", "scores"),
    [
        pytest.param(HEADER_OF_B, [0.0, 1.0], id="known_endpoint"),
        pytest.param("Yw==", [0.0, 0.0], id="endpoint_that_is_gone"),
        pytest.param("", [0.0, 0.0], id="no_token"),
        pytest.param("b", [0.0, 0.0], id="not_base64"),
        pytest.param("/w==", [0.0, 0.0], id="not_text"),
        pytest.param("é", [0.0, 0.0], id="not_ascii"),
    ],
)
def test_encoded_endpoint_is_preferred_and_invalid_tokens_are_ignored(
    token: str, scores: list[float]
) -> None:
    ratings = rated(EncodedEndpointScorer("x-session-token"), request(x_session_token=token), FLEET)

    assert [rating.score for rating in ratings] == scores


def test_response_carries_the_endpoint_for_the_next_request() -> None:
    scorer = EncodedEndpointScorer("x-session-token")

    headers = scorer.response_headers(sent_to("b"))

    assert headers == {"x-session-token": HEADER_OF_B}
    assert rated(scorer, RequestView(model="m", now=0.0, headers=headers), FLEET)[1].score == 1.0


def test_session_stays_on_its_endpoint_until_it_is_forgotten() -> None:
    scorer = SessionIdScorer(["x-session-id"], ttl_s=300.0)
    scorer.picked(request(x_session_id="s"), sent_to("b"))
    scorer.picked(request(200.0, x_session_id="s"), sent_to("b"))

    def scores(now: float, session: str) -> list[float]:
        return [rating.score for rating in rated(scorer, request(now, x_session_id=session), FLEET)]

    assert scores(500.0, "s") == [0.0, 1.0]
    assert scores(500.1, "s") == [0.0, 0.0]
    assert scores(200.0, "other") == [0.0, 0.0]


def test_session_moves_with_its_last_request() -> None:
    scorer = SessionIdScorer(["x-session-id"], ttl_s=300.0)
    for name in ("b", "a"):
        scorer.picked(request(x_session_id="s"), sent_to(name))

    assert [rating.score for rating in rated(scorer, request(x_session_id="s"), FLEET)] == [1.0, 0.0]


def test_session_id_is_the_first_header_that_is_not_empty() -> None:
    scorer = SessionIdScorer(["x-one", "x-two"], ttl_s=300.0)
    scorer.picked(request(x_one="", x_two="s"), sent_to("b"))

    assert rated(scorer, request(x_two="s"), FLEET)[1].score == 1.0
    assert rated(scorer, request(x_one="t", x_two="s"), FLEET)[1].score == 0.0


def test_requests_without_session_are_not_remembered() -> None:
    scorer = SessionIdScorer(["x-session-id"], ttl_s=300.0)
    scorer.picked(request(), sent_to("b"))
    scorer.picked(request(x_session_id="s" * (MAX_SESSION_ID_CHARS + 1)), sent_to("b"))

    assert len(scorer) == 0


def test_sessions_are_bounded_and_the_least_recently_used_are_dropped() -> None:
    scorer = SessionIdScorer(["x-session-id"], ttl_s=300.0)
    for number in range(MAX_SESSIONS + 1):
        scorer.picked(request(x_session_id=str(number)), sent_to("b"))

    assert len(scorer) == MAX_SESSIONS
    assert rated(scorer, request(x_session_id="0"), FLEET)[1].score == 0.0
    assert rated(scorer, request(x_session_id="1"), FLEET)[1].score == 1.0


def test_forgotten_sessions_take_no_memory() -> None:
    scorer = SessionIdScorer(["x-session-id"], ttl_s=300.0)
    for number in range(10):
        scorer.picked(request(x_session_id=str(number)), sent_to("b"))

    scorer.picked(request(301.0), sent_to("b"))

    assert len(scorer) == 0


@pytest.mark.parametrize(
    ("parameters", "learns", "marks"),
    [
        pytest.param({}, False, True, id="encoded_endpoint_header"),
        pytest.param({"strategy": "session_id"}, True, False, id="session_id"),
    ],
)
def test_strategy_decides_what_is_remembered_and_what_is_sent(
    parameters: dict[str, object], *, learns: bool, marks: bool
) -> None:
    scorer = built(builtin_registry().scorers, "session-affinity-scorer", parameters)

    assert (isinstance(scorer, LearnsFromPicks), isinstance(scorer, MarksResponses)) == (learns, marks)


def test_header_names_are_read_in_any_case() -> None:
    scorer = built(
        builtin_registry().scorers,
        "session-affinity-scorer",
        {"encodedEndpointHeaderConfig": {"header": " X-Pinned "}},
    )

    assert rated(scorer, request(x_pinned=HEADER_OF_B), FLEET)[1].score == 1.0


@pytest.mark.parametrize("source", [{"attribute": "agent-identity"}, {}, {"header": "x", "attribute": "y"}])
def test_sources_other_than_headers_are_rejected(source: dict[str, str]) -> None:
    parameters: dict[str, object] = {"strategy": "session_id", "sessionIdConfig": {"sources": [source]}}

    with pytest.raises(ParametersError, match="one header per source"):
        built(builtin_registry().scorers, "session-affinity-scorer", parameters)
