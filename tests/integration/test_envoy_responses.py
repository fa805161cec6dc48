"""Reports of requests through a real Envoy, in each mode of response processing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvatlas.routing.outcome import Outcome, Usage, UsageGap
from kvatlas.routing.router import ModelRewrite, Refusal, RefusalCode
from kvatlas.sim.envoy import EnvoyConfig
from support.envoy_gateway import Gateway, Mode, gateway, shipped, with_processing_mode
from support.ext_proc import make_route

TOLD = Usage(prompt_tokens=11, cached_tokens=8, output_tokens=7)
Edit = Callable[[EnvoyConfig], EnvoyConfig]

NO_RESPONSE = with_processing_mode(
    response_header_mode="SKIP", response_body_mode="NONE", response_trailer_mode="SKIP"
)
RESPONSE_HEADERS = with_processing_mode(response_header_mode="SEND")
RESPONSE_BODIES = with_processing_mode(response_header_mode="SEND", response_body_mode="STREAMED")
REQUEST_HEADERS = with_processing_mode(request_body_mode="NONE")


async def test_duplex_reports_the_server_and_its_usage() -> None:
    async with gateway("duplex") as at:
        await at.served_by({"accept-encoding": "identity"})
        completion = await at.completion()

        assert completion.outcome is Outcome.COMPLETED
        assert completion.served == completion.endpoint == at.servers[0].address
        assert completion.route == at.router.answer
        assert (completion.response.status, completion.response.usage) == (200, TOLD)
        assert (
            0 <= (completion.response.time_to_first_byte_s or -1) <= (completion.response.time_to_end_s or -1)
        )


async def test_duplex_reports_the_usage_of_a_stream() -> None:
    async with gateway("duplex") as at:
        at.servers[0].released.set()
        async with at.client.post("/v1/stream", json={"stream": True}) as answer:
            await answer.read()
        completion = await at.completion()

        assert (completion.response.usage, completion.response.n_events) == (TOLD, 2)


async def test_retried_request_counts_for_the_endpoint_that_served_it() -> None:
    async with gateway("duplex") as at:
        at.servers[0].status = 503
        at.router.answer = make_route(at.servers[0].address, at.servers[1].address)
        await at.served_by()

        assert (await at.completion()).endpoint == at.servers[1].address


async def test_compressed_answer_passes_unread() -> None:
    async with gateway("duplex") as at:
        assert await at.served_by({"accept-encoding": "gzip"}) == at.servers[0].address

        assert (await at.completion()).response.usage is UsageGap.ENCODED


async def test_duplex_names_the_model_as_the_client_did() -> None:
    async with gateway("duplex") as at:
        rewrite = ModelRewrite(b'{"model": "lora", "prompt": "p"}', "base", "lora")
        at.router.answer = make_route(at.servers[0].address, rewrite=rewrite)
        async with at.client.post("/v1/completions", json={"model": "base", "prompt": "p"}) as answer:
            assert (await answer.json())["model"] == "base"


async def test_duplex_reports_that_the_client_disconnected() -> None:
    async with gateway("duplex") as at:
        async with at.client.post("/v1/stream", json={"stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()

        assert (await at.completion()).outcome is Outcome.ABORTED


async def test_refusal_is_reported_once() -> None:
    async with gateway("duplex") as at:
        at.router.answer = Refusal(RefusalCode.RESOURCE_EXHAUSTED, "no")
        async with at.client.post("/v1/completions", json={}) as answer:
            assert answer.status == 429
        at.router.answer = make_route(at.servers[0].address)
        await at.served_by()

        assert [(await at.completion()).outcome for _ in range(2)] == [Outcome.REFUSED, Outcome.COMPLETED]


@pytest.mark.parametrize(
    ("mode", "edit", "method", "is_exact", "outcome"),
    [
        pytest.param("duplex", shipped, "POST", True, Outcome.COMPLETED, id="duplex"),
        pytest.param("duplex", shipped, "GET", True, Outcome.COMPLETED, id="duplex_without_body"),
        pytest.param("buffered", shipped, "POST", True, Outcome.ROUTED, id="buffered"),
        pytest.param("buffered", shipped, "GET", False, Outcome.ROUTED, id="buffered_without_body"),
        pytest.param("buffered", RESPONSE_HEADERS, "POST", True, Outcome.COMPLETED, id="buffered_response_headers"),
        pytest.param("buffered", RESPONSE_HEADERS, "GET", False, Outcome.COMPLETED, id="buffered_response_headers_without_body"),
        pytest.param("buffered", RESPONSE_BODIES, "POST", True, Outcome.COMPLETED, id="buffered_response_bodies"),
        pytest.param("buffered", REQUEST_HEADERS, "POST", False, Outcome.ROUTED, id="headers_only"),
        pytest.param("duplex", NO_RESPONSE, "POST", False, Outcome.ROUTED, id="duplex_without_response"),
    ],
)  # fmt: skip
async def test_end_of_a_request_is_reported_when_its_response_ends_or_it_is_routed(
    mode: Mode, edit: Edit, method: str, is_exact: bool, outcome: Outcome
) -> None:
    body = {"stream": True} if method == "POST" else None
    async with gateway(mode, edit) as at, at.client.request(method, "/v1/stream", json=body) as answer:
        route = at.router.answer
        await answer.content.readuntil(b"\n\n")
        if is_exact:
            await expect_nothing_told(at)
            at.servers[0].released.set()
            await answer.read()
        completion = await at.completion()

        assert (completion.outcome, completion.route) == (outcome, route)
        at.servers[0].released.set()


async def expect_nothing_told(at: Gateway) -> None:
    """Check that a later request is reported first, while an earlier one is still in progress."""
    at.router.answer = Refusal(RefusalCode.RESOURCE_EXHAUSTED, "no")
    async with at.client.post("/v1/completions", json={}) as answer:
        assert answer.status == 429
    assert (await at.completion()).outcome is Outcome.REFUSED
    assert at.completions.empty()
