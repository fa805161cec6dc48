"""Objectives of requests in a running `kvatlas serve`: learned, predicted, shown, counted, and a reason to refuse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.app.cli.main import app
from support.engine_metrics import metrics_of
from support.ext_proc import DUPLEX, request_body, request_headers, response_body, response_headers
from support.gateway import EVENT_STREAM, Gateway, gateway
from support.waiting import until

SLO = (("x-slo-ttft-ms", "60000"), ("x-slo-tpot-ms", "0.001"))
PLUGINS = [
    {"type": "predicted-latency-producer", "parameters": {"streamingMode": True}},
    {"type": "slo-headroom-tier-filter"},
    {"type": "latency-scorer"},
    {"type": "latency-slo-admitter"},
]
BUSY = "vllm:num_requests_waiting 0\nvllm:num_requests_running 5\nvllm:kv_cache_usage_perc 0.5\n"
N_LEARNED = 36


async def streamed(gate: Gateway, number: int, *headers: tuple[str, str]) -> None:
    """Send a request whose response has three tokens."""
    request = await gate.request(16 * (1 + number % 5), ("x-request-id", f"r{number}"), *headers)
    await request.say(response_headers(EVENT_STREAM))
    for _ in range(3):
        await request.say(response_body(b'data: {"choices": [{"text": "x"}]}\n\n'))
    await request.end()


@pytest.mark.slow
async def test_objectives_are_compared_with_what_was_learned(tmp_path: Path) -> None:
    async with metrics_of(BUSY) as (url, _):
        fleet = {"static": [{"name": "a", "address": "127.0.0.1:1", "events": "", "metrics": url}]}
        admission = {"objectives": {"batch": -1}, "queueDepthThreshold": 1000, "kvCacheUtilThreshold": 1}
        async with gateway(
            tmp_path,
            plugins=PLUGINS,
            endpoints=fleet,
            admission=admission | {"metricsStalenessThreshold": "60s"},
        ) as gate:

            async def is_scraped() -> bool:
                return 'kvatlas_load_age_seconds{endpoint="a"}' in await gate.served.metrics()

            await until(is_scraped, what="a scrape")
            before = await gate.served.get("/v1/decisions?limit=1")
            for number in range(N_LEARNED):
                await streamed(gate, number, *SLO)
            refusal = await refused(gate)
            decision: dict[str, Any] = await gate.served.get(f"/v1/decisions/r{N_LEARNED - 1}")
            shed: dict[str, Any] = await gate.served.get("/v1/decisions/shed")
            text = await gate.served.metrics()
            told = await asyncio.to_thread(
                CliRunner().invoke, app, ["explain", f"r{N_LEARNED - 1}", "--url", gate.url]
            )

    assert before["decisions"] == []
    assert decision["slo"] == {"ttftMs": 60000.0, "tpotMs": 0.001}
    (predicted,) = (each["predicted"] for each in decision["endpoints"])
    assert predicted["ttftHeadroomMs"] == pytest.approx(60000 - predicted["ttftMs"], rel=1e-5)
    assert predicted["tpotHeadroomMs"] == pytest.approx(0.001 - predicted["tpotMs"], rel=1e-5)
    assert (
        "objectives: first token within 60000 ms, output token within 0.001 ms\npredicted on a: first token in"
        in told.output
    )
    assert refusal.immediate_response.status.code == 429
    assert refusal.immediate_response.body == (
        b"inference error: ResourceExhausted - request cannot be admitted: "
        b"no valid endpoint available to serve the request"
    )
    (reason,) = refusal.immediate_response.headers.set_headers
    assert reason.header.raw_value == b"rejected-saturated"
    assert (shed["picked"], shed["priority"], shed["endpoints"][0]["filteredBy"]) == (
        [],
        -1,
        "latency-slo-admitter",
    )
    for line in (
        'kvatlas_requests_denied_total{plugin="latency-slo-admitter"} 1.0',
        f'kvatlas_slo_requests_total{{model="m",objective="ttft",outcome="met"}} {N_LEARNED}.0',
        f'kvatlas_slo_requests_total{{model="m",objective="tpot",outcome="missed"}} {N_LEARNED}.0',
        'kvatlas_latency_fitted{group="",scorer="predicted-latency-producer"}',
        'kvatlas_tpot_observations{group="",scorer="predicted-latency-producer"}',
    ):
        assert line in text


async def refused(gate: Gateway) -> pb.ProcessingResponse:
    """Send a request that may be shed, with an objective that no endpoint meets; return the answer."""
    call = gate.open()
    head = request_headers(
        (":path", "/v1/completions"),
        ("x-request-id", "shed"),
        ("x-llm-d-inference-objective", "batch"),
        ("x-llm-d-slo-tpot-ms", "0.001"),
        config=DUPLEX,
    )
    for message in (head, request_body(b'{"model":"m","prompt":[1,2,3]}', end=True)):
        await call.write(message.SerializeToString())
    answer = await call.read()
    call.cancel()
    assert isinstance(answer, pb.ProcessingResponse)
    return answer
