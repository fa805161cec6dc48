"""Requests in flight in a running `kvatlas serve`, over real ext-proc streams, and the scorers that use them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.engine_metrics import metrics_of
from support.ext_proc import (
    DUPLEX,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.gateway import EVENT_STREAM, Gateway, gateway
from support.waiting import until

HIDING = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED, response_body_mode=pb.ProcessingMode.NONE
)


@pytest.mark.slow
async def test_requests_and_tokens_are_in_flight_until_the_answer_ends_and_begins(tmp_path: Path) -> None:
    async with gateway(tmp_path, plugins=[{"type": "active-request-scorer"}]) as gate:
        first = await gate.request(100)
        second = await gate.request(30)
        assert {first.endpoint, second.endpoint} == {"a", "b"}, "the busy endpoint is avoided"
        assert await gate.in_flight() == {first.endpoint: (1, 100), second.endpoint: (1, 30)}

        await first.say(response_headers(EVENT_STREAM))
        await first.say(response_body(b"data"))
        assert await gate.in_flight() == {first.endpoint: (1, 0), second.endpoint: (1, 30)}

        await first.end()
        await until(gate.now(**{second.endpoint: (1, 30)}), what="the first request to be over")
        second.call.cancel()  # the client disconnected
        await until(gate.now(), what="nothing in flight")


@pytest.mark.slow
async def test_tokens_ahead_decide_with_the_token_load_scorer(tmp_path: Path) -> None:
    scorer = {"type": "token-load-scorer", "parameters": {"queueThresholdTokens": 1000}}
    async with gateway(tmp_path, plugins=[scorer]) as gate:
        long = await gate.request(900)
        short = [await gate.request(100) for _ in range(3)]
        assert {request.endpoint for request in short}.isdisjoint({long.endpoint})
        answer = await gate.served.post("/v1/score", {"model": "m", "token_ids": list(range(50))})
        raw = {each["name"]: each["scores"][0]["raw"] for each in answer["endpoints"]}
        for request in (long, *short):
            request.call.cancel()
        await until(gate.now(), what="nothing in flight")
    assert raw == {long.endpoint: 902.0, short[0].endpoint: 110.0}, "all prompts begin alike"


@pytest.mark.slow
async def test_session_is_marked_on_the_response_and_stays(tmp_path: Path) -> None:
    async with gateway(tmp_path, plugins=[{"type": "session-affinity-scorer"}]) as gate:
        first = await gate.request()
        reply = await first.say(response_headers())
        (option,) = reply.response_headers.response.header_mutation.set_headers
        token = (option.header.key, option.header.raw_value.decode())
        await first.end()
        later = [await gate.request(10, token) for _ in range(5)]
        for request in later:
            request.call.cancel()
        await until(gate.now(), what="nothing in flight")
    assert token[0] == "x-session-token"
    assert {request.endpoint for request in later} == {first.endpoint}


@pytest.mark.slow
async def test_latency_costs_are_learned_from_streamed_answers(tmp_path: Path) -> None:
    observations = 'kvatlas_latency_observations{group="",scorer="latency-cost-scorer"} '
    async with gateway(tmp_path, plugins=[{"type": "latency-cost-scorer"}]) as gate:
        streamed, whole = await gate.request(), await gate.request()
        await streamed.say(response_headers(EVENT_STREAM))
        await streamed.say(response_body(b"data"))
        await whole.say(response_headers())
        await whole.say(response_body(b"{}"))
        for request in (streamed, whole):
            await request.end()
        await until(gate.now(), what="nothing in flight")
        text = await gate.served.metrics()
    (line,) = [line for line in text.splitlines() if line.startswith(observations)]
    assert float(line.removeprefix(observations)) == 1.0, "an unstreamed response is no sample"
    assert 'kvatlas_latency_tier_credit{group="",scorer="latency-cost-scorer",tier="cpu"} 0.84' in text


@pytest.mark.slow
async def test_request_is_refused_when_filters_drop_every_endpoint(tmp_path: Path) -> None:
    nowhere = {"type": "label-selector-filter", "parameters": {"matchLabels": {"zone": "nowhere"}}}
    async with gateway(tmp_path, plugins=[nowhere, {"type": "active-request-scorer"}]) as gate:
        call = gate.open()
        for message in (
            request_headers(config=DUPLEX),
            request_body(b'{"model":"m","messages":[{"role":"user","content":"x"}]}', end=True),
        ):
            await call.write(message.SerializeToString())
        refusal = await call.read()
        score = await gate.served.post("/v1/score", {"model": "m", "token_ids": [1]})
        call.cancel()
    assert isinstance(refusal, pb.ProcessingResponse)
    assert refusal.immediate_response.status.code == 429
    assert b"no endpoints available for the given request" in refusal.immediate_response.body
    assert (score["picked"], score["endpoints"][0]["filteredBy"]) == ([], "label-selector-filter")
    assert score["endpoints"][0]["filterReason"] == "label zone is None, want 'nowhere'"


@pytest.mark.slow
async def test_hidden_answers_are_in_flight_until_the_endpoint_has_no_room_for_them(tmp_path: Path) -> None:
    async with metrics_of(metrics_text(running=9)) as (url, texts):
        fleet = {"static": [{"name": "a", "address": "127.0.0.1:1", "events": "", "metrics": url}]}
        scorer = {"type": "token-load-scorer"}
        async with gateway(tmp_path, plugins=[scorer], endpoints=fleet) as gate:
            for _ in range(3):
                call = gate.open()
                body = request_body(b'{"model":"m","prompt":[1,2,3]}', end=True)
                for message in (request_headers((":path", "/v1/completions"), config=HIDING), body):
                    await call.write(message.SerializeToString())
                for _reply in range(2):
                    await call.read()
                await call.done_writing()
                assert await call.code() == grpc.StatusCode.OK

            await gate.served.until_metric('kvatlas_in_flight_unseen_requests{endpoint="a"} 3.0')
            texts[0] = metrics_text(running=1)
            await gate.served.until_metric('kvatlas_in_flight_requests{endpoint="a"} 1.0')
            texts[0] = metrics_text(running=0)
            await gate.served.until_metric('kvatlas_in_flight_requests{endpoint="a"} 0.0')


def metrics_text(*, running: int) -> str:
    return f"vllm:num_requests_waiting 0\nvllm:num_requests_running {running}\nvllm:kv_cache_usage_perc 0.5\n"


@pytest.mark.slow
async def test_nothing_is_left_in_flight_when_many_requests_end_in_any_way(tmp_path: Path) -> None:
    """Send 60 requests at once that end whole, amid the response, before it, or before they were routed."""

    async def one(gate: Gateway, number: int) -> None:
        if number % 4 == 0:
            call = gate.open()
            await call.write(request_headers(config=DUPLEX).SerializeToString())
            call.cancel()
            return
        request = await gate.request(10 + number)
        if number % 4 > 1:
            await request.say(response_headers(EVENT_STREAM))
            await request.say(response_body(b"data"))
        if number % 4 > 2:
            await request.end()
        else:
            request.call.cancel()

    async with gateway(tmp_path, plugins=[{"type": "active-request-scorer"}]) as gate:
        kept = await gate.request(7)
        await asyncio.gather(*(one(gate, number) for number in range(60)))
        await until(gate.now(**{kept.endpoint: (1, 7)}), what="only the request in progress")
        kept.call.cancel()
        await until(gate.now(), what="nothing in flight")
