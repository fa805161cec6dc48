"""What a configuration plans for requests and responses: parsers, identities, reporters, the list of models."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.plan import make_plan
from kvatlas.tokenization.requests.parsers import Form
from support.plans import config

CHAT = "/v1/chat/completions"


def reporter(name: str, expression: str) -> dict[str, Any]:
    attributes = [{"key": {"name": name}, "expression": expression}]
    return {"type": "request-attribute-reporter", "name": name, "parameters": {"attributes": attributes}}


def handler(*parsers: str, **more: object) -> dict[str, Any]:
    return {"requestHandler": {"parsers": [{"pluginRef": each} for each in parsers]} | more}


def test_declared_plugins_act_though_no_profile_names_them() -> None:
    profiles = [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]
    plan = make_plan(
        config(
            "queue-scorer", "agent-identity", reporter("a", "1"), reporter("b", "2"), "models-responder",
            schedulingProfiles=profiles,
        )
    )  # fmt: skip
    assert [each.type for each in plan.requests.identities] == ["agent-identity"]
    assert len(plan.requests.reporters) == 2
    assert plan.requests.answers_models
    assert [name for name, _, _ in plan.profile.scorers] == ["queue-scorer"]
    assert plan.notes == ()


def test_nothing_acts_that_is_not_declared() -> None:
    for plan in (make_plan(config("queue-scorer")), make_plan(config())):
        assert (plan.requests.identities, plan.requests.reporters) == ((), ())
        assert not plan.requests.answers_models
        assert not plan.requests.propagates_priority
        assert plan.requests.parser.form("/v1/unknown") is Form.JSON


@pytest.mark.parametrize("plugins", [("queue-scorer", {"type": "passthrough-parser", "name": "any"}), ()])
def test_parsers_are_named_by_plugin_or_type(plugins: tuple[str | dict[str, Any], ...]) -> None:
    name = "any" if plugins else "passthrough-parser"
    plan = make_plan(config(*plugins, **handler(name, propagatePriority=True)))
    assert plan.requests.parser.form(CHAT) is Form.UNREAD
    assert plan.requests.propagates_priority


def test_limit_of_reading_is_that_of_grpc_messages_too() -> None:
    plan = make_plan(config("queue-scorer", tokenization={"maxReadingCost": 10_000}))
    assert plan.requests.parser.max_cost == 10_000


@pytest.mark.parametrize(
    ("plugins", "more", "problem"),
    [
        pytest.param(
            ("queue-scorer",),
            handler("queue-scorer"),
            "requestHandler.parsers[0].pluginRef: found 'queue-scorer', expected a parser",
            id="scorer",
        ),
        pytest.param(
            (),
            handler("passthru-parser"),
            "requestHandler.parsers[0].pluginRef: found 'passthru-parser', expected a parser; "
            "did you mean 'passthrough-parser'?",
            id="unknown",
        ),
        pytest.param(
            (reporter("a", "usage.("),),
            {},
            "plugins[0].parameters.attributes: expression: column 7: found '(', expected the name of a field",
            id="expression",
        ),
        pytest.param(
            ({"type": "session-id-producer"},),
            {},
            "plugins[0].parameters: found neither of headerName and cookieName, expected exactly one",
            id="session_without_source",
        ),
    ],
)
def test_problem_names_the_place_and_the_mend(
    plugins: tuple[str | dict[str, Any], ...], more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SchedulingError) as raised:
        make_plan(config(*plugins, **more))
    assert str(raised.value.problems[0]).startswith(problem)


def test_reporter_goes_on_over_a_change_of_something_else() -> None:
    before = make_plan(config("queue-scorer", reporter("a", "1")))
    after = make_plan(config("queue-scorer", reporter("a", "1"), "load-aware-scorer"), before=before)
    assert after.requests.reporters == before.requests.reporters
