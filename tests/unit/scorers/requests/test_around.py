"""Plugins around a decision: identity, session, reported numbers."""

from __future__ import annotations

import pytest
from msgspec import convert

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.around import Attribute, UsageCounts
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.requests.agent_identity import AgentIdentityParams
from support.built import built

REGISTRY = builtin_registry()
USAGE = UsageCounts(11, 7, 4)


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        pytest.param({"x-claude-code-session-id": "c1", "session-id": "c3"}, "c1", id="claude_code"),
        pytest.param({"x-session-affinity": "c2", "session_id": "c4"}, "c2", id="opencode"),
        pytest.param({"session-id": "c3", "session_id": "c4"}, "c3", id="codex"),
        pytest.param({"session_id": "c4"}, "c4", id="older_codex"),
        pytest.param({"x-mine": "a", "x-claude-code-session-id": "c1"}, "a", id="own_first"),
        pytest.param({"x-mine": "", "session-id": "c3"}, "c3", id="empty_counts_as_absent"),
        pytest.param({}, "", id="none"),
    ],
)
def test_agent_is_named_by_the_first_header(headers: dict[str, str], identity: str) -> None:
    plugin = built(REGISTRY.identities, "agent-identity", {"additionalSessionHeaders": ["X-Mine"]})
    params = convert({"additionalSessionHeaders": ["X-Mine"]}, AgentIdentityParams)
    assert plugin.identity(headers) == params.attribute(headers) == identity


@pytest.mark.parametrize(
    ("cookies", "session"),
    [
        pytest.param("a=1; sid=s1; sid=s2", "s1", id="first_of_the_name"),
        pytest.param("sid=", "", id="empty"),
        pytest.param("sid; xsid=s1;SID=s2", "", id="other_names"),
        pytest.param("sid=a=b ", "a=b", id="value_with_equals"),
    ],
)
def test_session_comes_from_the_cookie(cookies: str, session: str) -> None:
    source = built(REGISTRY.attributes, "session-id-producer", {"cookieName": "sid"})
    assert source.attribute({"cookie": cookies}) == session
    assert source.attribute({}) == ""


def test_session_comes_from_the_header() -> None:
    source = built(REGISTRY.attributes, "session-id-producer", {"headerName": " X-Sess ", "ttl": "1h30m"})
    assert source.attribute({"x-sess": " s1 "}) == "s1"


@pytest.mark.parametrize("names", [{}, {"headerName": "a", "cookieName": "b"}, {"headerName": " "}])
def test_session_has_exactly_one_source(names: dict[str, str]) -> None:
    with pytest.raises(ParametersError, match="expected exactly one"):
        built(REGISTRY.attributes, "session-id-producer", names)


def reported(
    expression: str, condition: str = "", *, usage: UsageCounts = USAGE, **key: str
) -> Attribute | None:
    entry = {"key": {"name": "cost"} | key, "expression": expression, "condition": condition}
    plugin = built(REGISTRY.reporters, "request-attribute-reporter", {"attributes": [entry]})
    return plugin.attribute(usage)


@pytest.mark.parametrize(
    ("expression", "condition", "value"),
    [
        pytest.param("usage.prompt_tokens + usage.completion_tokens", "", 18.0, id="sum"),
        pytest.param("usage.total_tokens", "usage.total_tokens > 10", 18.0, id="condition_holds"),
        pytest.param("usage.total_tokens", "usage.total_tokens > 100", None, id="condition_does_not_hold"),
        pytest.param("usage.total_tokens", "1", None, id="condition_is_a_number"),
        pytest.param("usage.total_tokens", "usage.nothing", None, id="condition_has_no_value"),
        pytest.param("usage.prompt_tokens_details.cached_tokens * 0.7", "", 2.0, id="rounded_down"),
        pytest.param("usage.nothing", "", None, id="no_value"),
        pytest.param("usage.prompt_tokens - 11.0", "", None, id="zero"),
        pytest.param("usage.prompt_tokens > 1", "", None, id="not_a_number"),
        pytest.param("1e300 * 1e300", "", None, id="not_finite"),
        pytest.param("-usage.prompt_tokens", "", -11.0, id="negative"),
    ],
)
def test_number_is_reported_if_there_is_one(expression: str, condition: str, value: float | None) -> None:
    found = reported(expression, condition)
    assert found == (None if value is None else Attribute("envoy.lb", "cost", value))


def test_number_goes_to_the_configured_place() -> None:
    assert reported("1", namespace="my.ns", name="a") == Attribute("my.ns", "a", 1.0)


def test_counts_of_an_engine_that_reports_none_are_zero() -> None:
    assert reported("usage.prompt_tokens + 1", usage=UsageCounts()) == Attribute("envoy.lb", "cost", 1.0)
    assert reported("5", "has(usage.prompt_tokens_details)", usage=UsageCounts()) is None


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        pytest.param([], "length >= 1", id="none"),
        pytest.param([{"key": {"name": "a"}, "expression": "1"}] * 2, "length <= 1", id="two"),
        pytest.param([{"key": {"name": ""}, "expression": "1"}], "length >= 1", id="no_name"),
        pytest.param(
            [{"key": {"name": "a"}, "expression": "usage.("}], "expression: column 7: found", id="expression"
        ),
        pytest.param(
            [{"key": {"name": "a"}, "expression": "1", "condition": "x"}],
            "condition: column 1",
            id="condition",
        ),
    ],
)
def test_parameters_are_refused_with_their_place(attributes: list[object], text: str) -> None:
    with pytest.raises(ParametersError, match=text):
        built(REGISTRY.reporters, "request-attribute-reporter", {"attributes": attributes})
