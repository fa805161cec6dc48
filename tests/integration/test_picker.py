"""The picker with its real parts: admission, the picked endpoint, and the recorded decision."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from kvatlas.configs.section import MAX_NAME_CHARS
from kvatlas.fleet.kubernetes.pool_references import PoolReference
from kvatlas.fleet.kubernetes.rewrites import (
    InferenceModelRewrite,
    ModelMatch,
    ModelRewrites,
    RewriteMeta,
    RewriteRule,
    RewriteSpec,
    RuleMatch,
    RuleTarget,
)
from kvatlas.routing.model_rewrite import target_by_rules
from kvatlas.routing.refusals import (
    MODEL_NOT_READ,
    NAME_TOO_LONG,
    NO_CANDIDATES,
    NOT_CACHED,
    NOT_REWRITTEN,
    SHED,
    TOO_SLOW,
)
from kvatlas.routing.router import Overload, Refusal, Route, RoutingRequest
from kvatlas.scorers.core.decision import Origin
from support.picker_parts import PickerParts, picker_parts

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = RoutingRequest("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
TOKENS = RoutingRequest("/v1/completions", json.dumps({"model": "m", "prompt": list(range(64))}).encode())
BATCH = {"x-llm-d-inference-objective": "batch"}
REWRITE = {"x-llm-d-model-name-rewrite": "lora"}


async def routed(parts: PickerParts, request: RoutingRequest) -> Route:
    answer = await parts.picker.route(request)
    assert isinstance(answer, Route), answer
    return answer


@pytest.mark.parametrize(
    ("n_fallbacks", "addresses"),
    [
        pytest.param(0, ("b:80",), id="none"),
        pytest.param(2, ("b:80", "d:80", "c:80"), id="next_best_first"),
        pytest.param(9, ("b:80", "d:80", "c:80", "a:80"), id="more_than_there_are"),
    ],
)
async def test_fallbacks_follow_the_picked_endpoint(n_fallbacks: int, addresses: tuple[str, ...]) -> None:
    async with picker_parts({"a": 9, "b": 0, "c": 5, "d": 1}, n_fallbacks=n_fallbacks) as made:
        assert (await routed(made, CHAT)).addresses == addresses  # R4


async def test_request_past_a_limit_is_refused_when_endpoints_have_different_models() -> None:
    def labels(model: str) -> dict[str, str]:
        return {"model": model}

    async with picker_parts({"a": 0}, endpoint_labels=labels) as made:
        unread = replace(CHAT, body=b'{"messages":[{"role":"', overload=Overload.PENDING_REQUESTS)

        assert await made.picker.route(unread) is MODEL_NOT_READ
        assert await made.picker.route(replace(unread, overload=Overload.UPLOAD_TIME)) is TOO_SLOW


async def test_request_past_a_limit_goes_to_its_model_if_the_beginning_names_it() -> None:
    def labels(model: str) -> dict[str, str]:
        return {"model": model}

    async with picker_parts({"a": 0}, endpoint_labels=labels) as made:
        named = replace(CHAT, body=b'{"model":"m","messages":[', overload=Overload.PENDING_REQUESTS)

        assert await made.picker.route(named) is not MODEL_NOT_READ


async def test_equal_fallbacks_come_in_any_order() -> None:
    async with picker_parts({"a": 0, "b": 5, "c": 5, "d": 5}, n_fallbacks=1) as made:
        seconds = {(await routed(made, CHAT)).addresses[1] for _ in range(50)}

        assert seconds == {"b:80", "c:80", "d:80"}


async def test_decision_keeps_whose_request_it_was() -> None:
    headers = BATCH | {"x-gateway-inference-fairness-id": "team-a", "traceparent": TRACE}
    async with picker_parts({"a": 0}) as made:
        route = await routed(made, replace(CHAT, headers=headers, request_id="id-1"))

        assert route.decision.origin == Origin("id-1", TRACE, "batch", -2, "team-a")


async def test_decision_keeps_defaults_when_a_request_has_no_headers() -> None:
    async with picker_parts({"a": 0}) as made:
        assert (await routed(made, CHAT)).decision.origin == Origin("", "", "", 0, "default-flow")  # R17, R18


async def test_negative_priority_is_shed_while_the_fleet_is_saturated() -> None:
    async with picker_parts({"a": 9, "b": 9}) as made:
        assert await made.picker.route(replace(CHAT, headers=BATCH)) is SHED  # E1
        assert isinstance(await made.picker.route(CHAT), Route)  # E4

        made.queue({"b": 0})
        assert isinstance(await made.picker.route(replace(CHAT, headers=BATCH)), Route)


@pytest.mark.parametrize("headers", [{}, BATCH])
async def test_fleet_without_endpoints_is_unavailable_to_everyone(headers: dict[str, str]) -> None:
    async with picker_parts({}) as made:
        assert await made.picker.route(replace(CHAT, headers=headers)) is NO_CANDIDATES  # E3


async def test_request_for_a_cached_prefix_is_refused_until_one_is_cached() -> None:
    wish = replace(TOKENS, headers={"prefer": "if-available"})
    async with picker_parts({"a": 0, "b": 0}) as made:
        assert await made.picker.route(wish) is NOT_CACHED  # R25
        first = await routed(made, TOKENS)

        assert (await routed(made, wish)).addresses == first.addresses
        assert await made.picker.route(replace(CHAT, headers=wish.headers)) is NOT_CACHED


async def test_request_past_a_limit_is_routed_by_load_without_its_body() -> None:
    async with picker_parts({"a": 3, "b": 0}) as made:
        request = replace(CHAT, body=b"", overload=Overload.HELD_BYTES)

        assert (await routed(made, request)).addresses == ("b:80",)
        assert made.picks("overload_bytes") == 1


async def test_request_past_a_limit_never_goes_to_a_model_it_does_not_want() -> None:
    async with picker_parts({"a": 0}) as made:
        request = replace(CHAT, body=b"", headers=REWRITE, overload=Overload.PENDING_REQUESTS)

        assert await made.picker.route(request) is NOT_REWRITTEN


async def test_rewritten_request_is_decided_as_the_model_it_goes_to() -> None:
    async with picker_parts({"a": 0}) as made:
        route = await routed(made, replace(CHAT, headers=REWRITE))

        assert route.rewrite is not None
        assert json.loads(route.rewrite.body) == json.loads(CHAT.body) | {"model": "lora"}  # R15
        assert (route.rewrite.asked_for, route.decision.model) == ("m", "lora")


def rules_for(model: str, target: str) -> ModelRewrites:
    found = ModelRewrites(lambda: 0.0)
    rule = RewriteRule(
        matches=(RuleMatch(model=ModelMatch(value=model)),), targets=(RuleTarget(model_rewrite=target),)
    )
    spec = RewriteSpec(pool_ref=PoolReference(), rules=(rule,))
    found.use([InferenceModelRewrite(metadata=RewriteMeta(name="r"), spec=spec)])
    return found


@pytest.mark.parametrize(
    ("rules", "headers", "model"),
    [
        pytest.param(rules_for("m", "other"), dict[str, str](), "other", id="rule"),
        pytest.param(rules_for("x", "other"), dict[str, str](), None, id="rule_for_another_model"),
        pytest.param(rules_for("m", "m"), dict[str, str](), None, id="rule_that_changes_nothing"),
        pytest.param(rules_for("m", "other"), REWRITE, "lora", id="header_goes_first"),
        pytest.param(ModelRewrites(lambda: 0.0), dict[str, str](), None, id="no_rules"),
    ],
)
async def test_request_goes_to_the_model_that_a_rule_puts_in_its_place(
    rules: ModelRewrites, headers: dict[str, str], model: str | None
) -> None:
    async with picker_parts({"a": 0}, rules=rules) as made:
        route = await routed(made, replace(CHAT, headers=headers))
        assert (route.rewrite.target if route.rewrite else None) == model
        assert route.decision.model == (model or "m")
        without_body = await routed(made, RoutingRequest("/v1/models", has_body=False))
        assert without_body.rewrite is None


async def test_request_past_a_limit_never_goes_to_a_model_that_a_rule_forbids() -> None:
    async with picker_parts({"a": 0}, rules=rules_for("m", "other")) as made:
        for body in (b"", b'{"model":"m"'):
            request = replace(CHAT, body=body, overload=Overload.PENDING_REQUESTS)
            assert await made.picker.route(request) is NOT_REWRITTEN
        kept = replace(CHAT, body=b'{"model":"x"', overload=Overload.PENDING_REQUESTS)
        assert (await routed(made, kept)).decision.model == "x"


async def test_header_that_names_no_possible_model_is_refused() -> None:
    async with picker_parts({"a": 0}) as made:
        request = replace(CHAT, headers={"x-llm-d-model-name-rewrite": "x" * (MAX_NAME_CHARS + 1)})
        assert await made.picker.route(request) is NAME_TOO_LONG


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": 4}'])
def test_request_without_readable_model_is_left_as_it_is_by_rules(body: bytes) -> None:
    assert target_by_rules(body, rules_for("", "other")) == ""


async def test_request_is_refused_when_it_matches_a_rewrite_and_is_not_json() -> None:
    async with picker_parts({"a": 0}) as made:
        answer = await made.picker.route(replace(CHAT, body=b"{", headers=REWRITE))

        assert isinstance(answer, Refusal)
        assert answer.message.startswith("error unmarshaling request bodyMap: ")
