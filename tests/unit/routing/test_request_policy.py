"""What a configuration has done with requests: identity, priority in bodies, formats, the list of models."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvatlas.routing.dry_run import PromptQuery, dry_run
from kvatlas.routing.outcome import Completion, Outcome, Response, Usage
from kvatlas.routing.policy import RequestPolicy
from kvatlas.routing.router import LocalResponse, Overload, Refusal, RefusalCode, Route, RoutingRequest
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.tokenization.requests.parsers import PASSTHROUGH, BodyParser
from support.built import built
from support.picker_parts import PickerParts, picker_parts
from support.protobuf import frame, tokenized

CHAT = "/v1/chat/completions"
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
OBJECTIVE = {"x-llm-d-inference-objective": "batch"}
"""Of priority -2."""
AGENT = built(builtin_registry().identities, "agent-identity", {})


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


async def routed(parts: PickerParts, path: str = CHAT, body: bytes | None = None, **request: Any) -> Route:
    found = await parts.picker.route(RoutingRequest(path, chat() if body is None else body, **request))
    assert isinstance(found, Route)
    return found


@pytest.mark.parametrize(
    ("headers", "flow"),
    [
        pytest.param({"session-id": "s"}, "s", id="identity"),
        pytest.param({"session-id": "s", "x-llm-d-inference-fairness-id": "f"}, "f", id="header_first"),
        pytest.param({}, "default-flow", id="neither"),
        pytest.param({"session-id": "s" * 1000}, "s" * 256, id="long"),
    ],
)
async def test_request_counts_for_its_agent(headers: dict[str, str], flow: str) -> None:
    async with picker_parts({"a": 0}) as parts:
        parts.act_on_requests(RequestPolicy(identities=(AGENT,)))
        route = await routed(parts, headers=headers)
    assert route.decision.origin is not None
    assert route.decision.origin.fairness_id == flow


async def test_choices_and_prompts_of_a_request_are_known_until_its_response_has_ended() -> None:
    async with picker_parts({"a": 0}) as parts:
        several = await routed(parts, body=chat(n=4))
        prompts = await routed(parts, "/v1/completions", b'{"model": "m", "prompt": ["a", "b"], "n": 2}')
    for route, tpot_s in ((several, 0.1), (prompts, None)):
        response = Response(
            status=200,
            usage=Usage(output_tokens=44),
            time_to_first_byte_s=1.0,
            time_to_end_s=2.0,
            shows_tokens=True,
        )
        ended = Completion("r", route, Outcome.COMPLETED, response=response)
        assert ended.tpot_s == (None if tpot_s is None else pytest.approx(tpot_s))


async def test_all_prompts_of_a_request_are_booked() -> None:
    async with picker_parts({"a": 0}) as parts:
        await routed(parts, "/v1/completions", json.dumps({"model": "m", "prompt": [[1] * 64] * 20}).encode())
        assert parts.fleet.in_flight.of("a").tokens == 20 * 64


@pytest.mark.parametrize(
    ("labels", "number"),
    [
        pytest.param({}, 2, id="no_label_counts_as_vllm"),
        pytest.param({"llm-d.ai/engine-type": "vllm"}, 2, id="vllm_prefers_lower"),
        pytest.param({"llm-d.ai/engine-type": "SGLang"}, -2, id="sglang_prefers_higher"),
        pytest.param({"inference.networking.k8s.io/engine-type": "sglang"}, -2, id="older_label"),
    ],
)
async def test_priority_goes_into_the_body_in_the_engines_sense(labels: dict[str, str], number: int) -> None:
    async with picker_parts({"a": 0}, labels=labels) as parts:
        parts.act_on_requests(RequestPolicy(propagates_priority=True))
        route = await routed(parts, body=chat(priority=-99, big=2**60), headers=OBJECTIVE)
    assert route.rewrite is not None
    assert json.loads(route.rewrite.body) == json.loads(chat(big=2**60)) | {"priority": number}
    assert (route.rewrite.asked_for, route.rewrite.has_priority) == ("", False)


async def test_priority_and_another_model_go_into_one_body() -> None:
    async with picker_parts({"a": 0}) as parts:
        parts.act_on_requests(RequestPolicy(propagates_priority=True))
        route = await routed(parts, headers={"x-llm-d-model-name-rewrite": "other"})
    assert route.rewrite is not None
    assert json.loads(route.rewrite.body) == json.loads(chat(model="other")) | {"priority": 0}
    assert (route.rewrite.asked_for, route.rewrite.target) == ("m", "other")


async def test_body_stays_without_the_setting_and_in_other_forms() -> None:
    async with picker_parts({"a": 0}) as parts:
        assert (await routed(parts)).rewrite is None
        parts.act_on_requests(RequestPolicy(propagates_priority=True))
        assert (await routed(parts, GENERATE, frame(tokenized(1)))).rewrite is None
        parts.act_on_requests(RequestPolicy(BodyParser([PASSTHROUGH]), propagates_priority=True))
        assert (await routed(parts)).rewrite is None


async def test_token_ids_of_a_grpc_message_are_the_prompt() -> None:
    async with picker_parts({"a": 0, "b": 0}) as parts:
        route = await routed(parts, GENERATE, frame(tokenized(*range(64))))
        again = await routed(parts, GENERATE, frame(tokenized(*range(80))))
    assert (route.decision.n_tokens, route.decision.no_prefix_reason) == (64, None)
    assert again.addresses == route.addresses


async def test_body_of_any_format_is_routed_without_prefix() -> None:
    async with picker_parts({"a": 0}) as parts:
        parts.act_on_requests(RequestPolicy(BodyParser([PASSTHROUGH])))
        await routed(parts, body=b"\x00 no JSON")
        await routed(parts, body=b"\x00", overload=Overload.HELD_BYTES)
        assert parts.picks("unread") == 1


async def test_path_of_no_parser_is_refused() -> None:
    async with picker_parts({"a": 0}) as parts:
        parts.act_on_requests(RequestPolicy(BodyParser(["openai-parser"])))
        found = await parts.picker.route(RoutingRequest("/v1/messages", b"{}"))
    text = "no parser registered matching path suffix for: /v1/messages"
    assert found == Refusal(RefusalCode.BAD_REQUEST, text)


async def test_list_of_models_is_answered_if_the_configuration_says_so() -> None:
    get = RoutingRequest("/v1/models/?a=1", has_body=False, headers={":method": "GET"})
    async with picker_parts({"a": 0}) as parts:
        assert isinstance(await parts.picker.route(get), Route)
        parts.act_on_requests(RequestPolicy(answers_models=True))
        none_yet = await parts.picker.route(get)
        parts.models.list = b"{}"
        assert await parts.picker.route(get) == LocalResponse(b"{}")
        for path, method in (("/v1/models", "POST"), ("/v1/models/m", "GET"), ("/x/v1/models", "GET")):
            other = RoutingRequest(path, has_body=False, headers={":method": method})
            assert isinstance(await parts.picker.route(other), Route)
    assert isinstance(none_yet, Refusal)
    assert none_yet.code is RefusalCode.SERVICE_UNAVAILABLE


@pytest.mark.parametrize(
    ("subset", "address"),
    [
        pytest.param(None, "b:80", id="all"),
        pytest.param(frozenset({"a:80", "b"}), "b:80", id="by_ip"),
        pytest.param(frozenset({"a:80", "b:80"}), "b:80", id="by_address"),
        pytest.param(frozenset({"a:80"}), "a:80", id="the_gateway_wins"),
    ],
)
async def test_model_goes_to_an_endpoint_that_lists_it(subset: frozenset[str] | None, address: str) -> None:
    async with picker_parts({"a": 0, "b": 9}) as parts:
        parts.models.addresses["m"] = frozenset({"b:80"})
        assert (await routed(parts)).addresses == ("a:80",)
        parts.act_on_requests(RequestPolicy(answers_models=True))
        assert (await routed(parts, subset=subset)).addresses == (address,)
        shown = await dry_run(parts.picker, PromptQuery(model="m", text="hi"))
        assert shown is not None
        assert shown.picked == ("b",)
        parts.models.addresses["m"] = frozenset({"gone:80"})
        assert (await routed(parts)).addresses == ("a:80",)


class Answers:
    """An estimate of answers, with what it was asked for. Implements `LoadEstimate`."""

    adds_output = True

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    def output_tokens(self, n_prompt: int, *, asked: int | None) -> int:  # noqa: ARG002 - see `LoadEstimate`
        self.asked.append(asked)
        return 7


async def test_answer_counts_in_a_dry_run_as_in_a_request_without_limit() -> None:
    answers = Answers()
    async with picker_parts({"a": 0}) as parts:
        parts.picker.use(replace(parts.picker.policy, load=answers))
        await routed(parts)
        await dry_run(parts.picker, PromptQuery(model="m", text="hi"))
    assert answers.asked == [None, None]
