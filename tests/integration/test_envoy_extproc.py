"""Requests through a real Envoy that runs the shipped configurations, with kvatlas's ext-proc server behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO

import pytest

from kvatlas.api.extproc.dialect import LlmD
from kvatlas.routing.control_headers import CONTROL_HEADERS
from kvatlas.routing.router import ModelRewrite, Refusal, RefusalCode
from kvatlas.sim.envoy import EnvoyConfig, remove_filter, without_picker
from support.envoy_gateway import DESTINATION, FIRST_EVENT, LAST_EVENT, Mode, gateway, http_filters, shipped
from support.ext_proc import make_route

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

both_modes = pytest.mark.parametrize("mode", ["duplex", "buffered"])


def trusting_clients(config: EnvoyConfig) -> EnvoyConfig:
    remove_filter(config, "strip_destination")
    return config


def with_subset_from_header(config: EnvoyConfig) -> EnvoyConfig:
    """Give Envoy a subset hint by hand, in the usual way."""
    rule = {
        "header": "x-subset",
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING",
        },
    }
    kind = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
    to_metadata = {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {"@type": kind, "request_rules": [rule]},
    }
    http_filters(config).insert(0, to_metadata)
    return config


@both_modes
async def test_request_reaches_the_chosen_server(mode: Mode) -> None:
    async with gateway(mode) as at:
        for server in at.servers * 2:
            at.router.answer = make_route(server.address)
            assert await at.served_by() == server.address

        bodies = [[request.body for request in server.received] for server in at.servers]
        assert bodies == [[b'{"prompt": "p"}'] * 2] * 3
        assert [request.body for request in at.router.requests] == [b'{"prompt": "p"}'] * 6
        assert {request.path for request in at.router.requests} == {"/v1/completions"}


@both_modes
async def test_request_without_body_reaches_the_chosen_server(mode: Mode) -> None:
    async with gateway(mode) as at:
        for server in at.servers:
            at.router.answer = make_route(server.address)
            async with at.client.get("/v1/completions") as answer:
                assert (await answer.json())["server"] == server.address

        assert not any(request.has_body for request in at.router.requests)


@both_modes
async def test_next_address_is_tried_when_a_server_answers_503(mode: Mode) -> None:
    async with gateway(mode) as at:
        first, second, third = at.servers
        second.status = 503
        at.router.answer = make_route(second.address, third.address, first.address)

        assert await at.served_by() == third.address
        assert len(second.received) == 1


@both_modes
@pytest.mark.parametrize("n_chars", [1_500_000, 8_000_000])
async def test_body_of_megabytes_arrives_unchanged(mode: Mode, n_chars: int) -> None:
    body = json.dumps({"prompt": "".join(chr(97 + n % 26) for n in range(n_chars))}).encode()
    async with gateway(mode) as at:
        async with at.client.post("/v1/completions", data=BytesIO(body)) as answer:
            assert answer.status == 200

        assert [request.body for request in at.servers[0].received] == [body]
        assert at.router.requests[0].body == body


@both_modes
async def test_body_with_another_model_arrives_whole(mode: Mode) -> None:
    new_body = json.dumps({"model": "target", "prompt": "x" * 100_000}).encode()
    async with gateway(mode) as at:
        rewrite = ModelRewrite(new_body, "m", "target")
        at.router.answer = make_route(at.servers[1].address, rewrite=rewrite)

        assert await at.served_by() == at.servers[1].address
        (request,) = at.servers[1].received
        assert request.body == new_body
        assert request.headers.get("content-length", str(len(new_body))) == str(len(new_body))  # B2


@both_modes
async def test_events_pass_as_they_come(mode: Mode) -> None:
    async with gateway(mode) as at, at.client.post("/v1/stream", json={"stream": True}) as answer:
        first = await answer.content.readuntil(b"\n\n")
        at.servers[0].released.set()  # the server continues only here
        rest = await answer.content.read()

        assert answer.headers["content-type"] == "text/event-stream"
        assert (first, rest) == (FIRST_EVENT, LAST_EVENT)


@both_modes
async def test_bad_json_is_answered_400(mode: Mode) -> None:
    async with gateway(mode) as at, at.client.post("/v1/completions", data=b"{") as answer:
        assert answer.status == 400
        assert await answer.text() == "inference error: BadRequest - request body is not JSON"
        assert not any(server.received for server in at.servers)


@both_modes
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_endpoint_is_answered_503(mode: Mode, method: str) -> None:
    async with gateway(mode) as at:
        at.router.answer = Refusal(
            RefusalCode.SERVICE_UNAVAILABLE, "none", dropped_reason="rejected-no-endpoints"
        )
        data = b"{}" if method == "POST" else None
        async with at.client.request(method, "/v1/completions", data=data) as answer:
            assert answer.status == 503
            assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
            assert await answer.text() == "inference error: ServiceUnavailable - none"


@both_modes
@pytest.mark.parametrize("edit", [shipped, trusting_clients])
async def test_destination_sent_by_the_client_is_overwritten(
    mode: Mode, edit: Callable[[EnvoyConfig], EnvoyConfig]
) -> None:
    async with gateway(mode, edit) as at:
        chosen, wished, _ = (server.address for server in at.servers)

        assert await at.served_by({DESTINATION: wished}) == chosen
        assert at.servers[0].received[0].headers.getlist(DESTINATION) == [chosen]
        assert DESTINATION not in at.router.requests[0].headers


@both_modes
async def test_subset_hint_reaches_the_router(mode: Mode) -> None:
    async with gateway(mode, with_subset_from_header) as at:
        await at.served_by({"x-subset": "10.0.0.1, 10.0.0.2:8000"})
        await at.served_by()

        assert [request.subset for request in at.router.requests] == [{"10.0.0.1", "10.0.0.2:8000"}, None]


@both_modes
async def test_control_headers_of_the_client_reach_the_picker_but_no_server(mode: Mode) -> None:
    sent = dict.fromkeys(CONTROL_HEADERS, "spoofed") | {"traceparent": TRACE, "tracestate": "a=b"}
    async with gateway(mode, trusting_clients) as at:
        await at.served_by(sent)

        (request,) = at.servers[0].received
        assert not CONTROL_HEADERS & set(request.headers)
        assert (request.headers["traceparent"], request.headers["tracestate"]) == (TRACE, "a=b")
        assert at.router.requests[0].headers["x-llm-d-inference-objective"] == "spoofed"


@both_modes
async def test_headers_that_sidecars_obey_are_stripped_by_the_gateway(mode: Mode) -> None:
    async with gateway(mode, without_picker) as at:
        await at.served_by({"x-prefiller-host-port": "6.6.6.6:1", DESTINATION: "6.6.6.6:1"})

        received = [request for server in at.servers for request in server.received]
        assert not {DESTINATION, "x-prefiller-host-port"} & set(received[0].headers)


@both_modes
async def test_reference_dialect_works_behind_envoy(mode: Mode) -> None:
    async with gateway(mode, dialect=LlmD()) as at:
        async with at.client.post("/v1/completions", json={"prompt": "p"}, headers={"x-user": "u"}) as answer:
            assert answer.status == 200
            assert (await answer.json())["server"] == at.servers[0].address
            assert answer.headers.get("x-went-into-resp-headers") == ("true" if mode == "duplex" else None)

        (request,) = at.servers[0].received
        assert (request.headers.getlist("x-user"), request.body) == (["u"], b'{"prompt": "p"}')


async def test_gateway_without_picker_goes_round_robin() -> None:
    async with gateway("duplex", without_picker) as at:
        served = {await at.served_by() for _ in range(6)}

        assert served == {server.address for server in at.servers}
        assert at.router.requests == []
