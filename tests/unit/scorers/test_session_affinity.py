"""`session-affinity-scorer` and `-filter`: both strategies, invalid tokens, bounds."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec
import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.base import LearnsFromPicks, MarksResponses
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.sessions import MAX_SESSION_ID_CHARS, MAX_SESSIONS, SessionAffinityParams
from kvatlas.scorers.core.sibling_sessions import digest_of
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.session_affinity import EncodedEndpointScorer, SessionIdScorer
from support.built import built
from support.candidates import endpoint
from support.rating import judged, rated, routed_to

FLEET = [endpoint("a"), endpoint("b"), endpoint("prod/c")]


class Cookie:
    """Makes the attribute of a request from one header, as plugins of other packages may."""

    def attribute(self, headers: Mapping[str, str]) -> str:
        return headers.get("cookie", "")


CONTEXT = BuildContext(request_attributes={"session-id-producer": Cookie(), "agent": Cookie()})


def token(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def scorer_of(**config: object) -> SessionIdScorer:
    """Return a scorer by session ids."""
    scorer = built(
        builtin_registry().scorers,
        "session-affinity-scorer",
        {"strategy": "session_id", "sessionIdConfig": config},
        CONTEXT,
    )
    assert isinstance(scorer, SessionIdScorer)
    return scorer


def request(now: float = 0.0, **headers: str) -> RequestView:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestView(model="m", now=now, headers=named)


def sent_to(name: str) -> Decision:
    return routed_to(endpoint(name))


@pytest.mark.parametrize(
    ("sent", "pinned"),
    [
        pytest.param("ZGVmYXVsdC9i", "b", id="known_endpoint"),
        pytest.param(token("prod/c"), "prod/c", id="other_namespace"),
        pytest.param(token("default/d"), None, id="endpoint_that_is_gone"),
        pytest.param(token("other/b"), None, id="same_name_in_another_namespace"),
        pytest.param(token("b"), None, id="no_namespace"),
        pytest.param("", None, id="no_token"),
        pytest.param("ZGVmYXVsdC9i"[:-1], None, id="no_base64"),
        pytest.param("!!", None, id="other_characters"),
        pytest.param("/w==", None, id="not_text"),
        pytest.param("é", None, id="not_ascii"),
    ],
)
def test_encoded_endpoint_is_preferred_and_invalid_tokens_are_ignored(sent: str, pinned: str | None) -> None:
    scorer = built(builtin_registry().scorers, "session-affinity-scorer", {})
    plugin = built(builtin_registry().filters, "session-affinity-filter", {})
    view = request(x_session_token=sent)

    assert [rating.score for rating in rated(scorer, view, FLEET)] == [each.name == pinned for each in FLEET]
    reason = f"the session is bound to {pinned}"
    expected = [None if pinned in (None, each.name) else reason for each in FLEET]
    assert judged(plugin, view, FLEET) == expected


def test_response_carries_the_endpoint_for_the_next_request() -> None:
    scorer = EncodedEndpointScorer("x-session-token", namespace="default")

    headers = scorer.response_headers(sent_to("b"))

    assert headers == {"x-session-token": token("default/b")}
    assert rated(scorer, RequestView(model="m", now=0.0, headers=headers), FLEET)[1].score == 1.0
    assert scorer.response_headers(sent_to("prod/c")) == {"x-session-token": token("prod/c")}


def test_names_without_namespace_have_that_of_the_pool() -> None:
    context = BuildContext(namespace="prod")
    plugin = built(builtin_registry().filters, "session-affinity-filter", {}, context)

    assert isinstance(plugin, MarksResponses)
    assert plugin.response_headers(sent_to("b")) == {"x-session-token": token("prod/b")}
    assert judged(plugin, request(x_session_token=token("prod/b")), FLEET[:2])[1] is None
    assert judged(plugin, request(x_session_token=token("default/b")), FLEET[:2]) == [None, None]


def test_session_stays_on_its_endpoint_until_it_is_forgotten() -> None:
    scorer = scorer_of()
    scorer.picked(request(x_session_id="s"), sent_to("b"))
    scorer.picked(request(200.0, x_session_id="s"), sent_to("b"))

    def scores(now: float, session: str) -> list[float]:
        return [rating.score for rating in rated(scorer, request(now, x_session_id=session), FLEET)]

    assert scores(500.0, "s") == [0.0, 1.0, 0.0]
    assert scores(500.1, "s") == [0.0] * 3
    assert scores(200.0, "other") == [0.0] * 3


def test_session_moves_only_when_its_endpoint_could_not_be_picked() -> None:
    scorer, filtering = (
        scorer_of(),
        built(builtin_registry().filters, "session-affinity-filter", {"strategy": "session_id"}),
    )
    assert isinstance(filtering, LearnsFromPicks)
    a, b = FLEET[:2]
    view = request(x_session_id="s")
    for plugin in (scorer, filtering):
        plugin.picked(view, routed_to(b, a))
        plugin.picked(view, routed_to(a, b))
    assert [rating.score for rating in rated(scorer, view, FLEET)] == [0.0, 1.0, 0.0]

    for plugin in (scorer, filtering):
        plugin.picked(view, routed_to(a))
    assert [rating.score for rating in rated(scorer, view, FLEET)] == [1.0, 0.0, 0.0]
    assert judged(filtering, view, FLEET) == [None, *["the session is bound to a"] * 2]
    assert judged(filtering, view, FLEET[1:]) == [None, None]


def test_process_that_starts_learns_the_last_use_of_a_session_from_any_other() -> None:
    scorer, started = scorer_of(), scorer_of()
    scorer.picked(request(x_session_id="s"), sent_to("a"))
    scorer.picked(request(9.0, x_session_id="t"), sent_to("b"))
    shared = scorer.shared_uses()["sessions"]
    for session, at in (("s", 5.0), ("t", 4.0)):
        shared.on_use(digest_of(session), "prod/c", at, 9.0)
    for digest, (name, used_at) in shared.uses().items():
        started.shared_uses()["sessions"].on_use(digest, name, used_at, 9.0)

    for session, scores in (("s", [0.0, 0.0, 1.0]), ("t", [0.0, 1.0, 0.0])):
        view = request(9.0, x_session_id=session)
        assert [rating.score for rating in rated(scorer, view, FLEET)] == scores
        assert [rating.score for rating in rated(started, view, FLEET)] == scores


def test_session_id_is_the_first_header_that_is_not_empty() -> None:
    scorer = scorer_of(sources=[{"header": "X-One"}, {"header": "x-two"}])
    scorer.picked(request(x_one="", x_two="s"), sent_to("b"))

    assert rated(scorer, request(x_two="s"), FLEET)[1].score == 1.0
    assert rated(scorer, request(x_one="t", x_two="s"), FLEET)[1].score == 0.0


def test_requests_without_session_are_not_remembered() -> None:
    scorer = scorer_of()
    scorer.picked(request(), sent_to("b"))
    scorer.picked(request(x_session_id="s" * (MAX_SESSION_ID_CHARS + 1)), sent_to("b"))

    assert len(scorer) == 0


def test_sessions_are_bounded_and_the_least_recently_used_are_dropped() -> None:
    scorer, decision = scorer_of(), sent_to("b")
    for number in range(MAX_SESSIONS + 1):
        scorer.picked(request(x_session_id=str(number)), decision)

    assert len(scorer) == MAX_SESSIONS
    assert rated(scorer, request(x_session_id="0"), FLEET)[1].score == 0.0
    assert rated(scorer, request(x_session_id="1"), FLEET)[1].score == 1.0


def test_forgotten_sessions_take_no_memory() -> None:
    scorer = scorer_of()
    for number in range(10):
        scorer.picked(request(x_session_id=str(number)), sent_to("b"))

    scorer.picked(request(301.0), sent_to("b"))

    assert len(scorer) == 0


def test_session_id_may_be_an_attribute_of_the_request() -> None:
    source = {"attribute": "SessionIDDataKey", "producer": "session-id-producer"}
    for sources in ([source], [{"attribute": "SessionIDDataKey"}], [{"attribute": "agent"}]):
        scorer = scorer_of(sources=sources)
        scorer.picked(request(cookie="s"), sent_to("b"))

        assert rated(scorer, request(cookie="s"), FLEET)[1].score == 1.0
        assert rated(scorer, request(x_session_id="s"), FLEET)[1].score == 0.0


def test_attributes_that_nobody_makes_are_remarked_on() -> None:
    config = {"sources": ({"attribute": "nobody"}, {"header": "x"}, {"attribute": "agent"})}
    data = {"strategy": "session_id", "sessionIdConfig": config}
    params = msgspec.convert(data, SessionAffinityParams)

    assert list(params.remarks(CONTEXT)) == ["no plugin 'nobody' makes the attribute 'nobody' of requests"]
    scorer = scorer_of(sources=[{"attribute": "nobody"}, {"header": "x"}])
    scorer.picked(request(x="s"), sent_to("b"))
    assert rated(scorer, request(x="s"), FLEET)[1].score == 1.0


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
    registry = builtin_registry()
    for plugin in (
        built(registry.scorers, "session-affinity-scorer", parameters),
        built(registry.filters, "session-affinity-filter", parameters),
        built(registry.filters, "multicluster-session-affinity-filter", parameters),
    ):
        assert (isinstance(plugin, LearnsFromPicks), isinstance(plugin, MarksResponses)) == (learns, marks)


def test_header_names_are_read_in_any_case() -> None:
    scorer = built(
        builtin_registry().scorers,
        "session-affinity-scorer",
        {"encodedEndpointHeaderConfig": {"header": " X-Pinned "}},
    )

    assert rated(scorer, request(x_pinned=token("default/b")), FLEET)[1].score == 1.0


@pytest.mark.parametrize("source", [{}, {"header": "x", "attribute": "y"}, {"producer": "p"}])
def test_sources_need_a_header_or_an_attribute(source: dict[str, str]) -> None:
    with pytest.raises(ParametersError, match="either a header or an attribute"):
        scorer_of(sources=[source])


def test_empty_parameters_are_the_defaults() -> None:
    """As in the reference, which reads a missing number as 0 and a missing text as empty."""
    scorer = scorer_of(sources=[], evictionTtlSeconds=0, evictionSweepSeconds=0)
    scorer.picked(request(x_session_id="s"), sent_to("b"))
    assert rated(scorer, request(300.0, x_session_id="s"), FLEET)[1].score == 1.0

    plugin = built(
        builtin_registry().filters, "session-affinity-filter", {"encodedEndpointHeaderConfig": {"header": ""}}
    )
    assert isinstance(plugin, MarksResponses)
    assert list(plugin.response_headers(sent_to("b"))) == ["x-session-token"]
