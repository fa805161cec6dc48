"""Spans of requests, sent to a real OTLP receiver."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from kvatlas.api.errors import TracingError
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.extproc.stream import StreamReports
from kvatlas.api.tracing import http_session
from kvatlas.api.tracing.counts import SpanCounts
from kvatlas.api.tracing.export import BoundedProcessor
from kvatlas.api.tracing.tracing import Tracing
from kvatlas.configs.tracing import TracingConfig
from kvatlas.routing.outcome import Completion
from kvatlas.routing.router import Refusal, RefusalCode, Route, RoutingRequest
from support.blocking_stream import converse
from support.ext_proc import (
    DUPLEX,
    FixedRouter,
    make_route,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.otlp_receiver import Receiver, attributes_of, receiving, receiving_http
from support.serve import serving
from support.waiting import PATIENCE_S, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = b'{"model":"m","messages":[{"role":"user","content":"p"}]}'
USAGE = b'{"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}}'
ADDRESS = "10.0.0.1:8000"


def context(sampled: str = "01") -> tuple[str, str]:
    return "traceparent", f"00-{TRACE}-{PARENT}-{sampled}"


async def exchange(port: int, *headers: tuple[str, str]) -> dict[str, str]:
    """Send one request and its response; return the headers that the picker set on the request."""
    messages = [
        request_headers(*headers, config=DUPLEX),
        request_body(BODY, end=True),
        response_headers(("content-type", "application/json")),
        response_body(USAGE, end=True),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await converse(channel, [message.SerializeToString() for message in messages])
    assert answer.code == grpc.StatusCode.OK, answer.details
    mutation = answer.replies[0].request_headers.response.header_mutation
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}


@asynccontextmanager
async def traced(
    answer: Route | Refusal, environment: dict[str, str] | None = None, ratio: float = 1.0
) -> AsyncGenerator[tuple[int, Tracing, Receiver, list[Completion]]]:
    """Run an ext-proc server whose router gives one answer, and a receiver of its spans."""
    completions: list[Completion] = []
    async with receiving() as receiver:
        tracing = Tracing(TracingConfig(sample_ratio=ratio), environment or {}, receiver.url, SpanCounts())
        router = tracing.traced(FixedRouter(answer))
        reports = StreamReports(on_complete=router.completed(completions.append))
        server = ExtProcServer(router, HealthService(ready=True), reports=reports)
        port = await server.start("127.0.0.1", 0)
        try:
            yield port, tracing, receiver, completions
        finally:
            await server.stop(0)
            await tracing.stop()


async def test_spans_of_a_request_stand_below_the_gateways() -> None:
    async with traced(make_route(ADDRESS)) as (port, tracing, receiver, completions):
        headers = await exchange(port, context(), ("tracestate", "a=b"))
        await tracing.stop()

        spans = {span.name: span for span in receiver.spans}
        request, routing = spans["gateway.request"], spans["gateway.request_orchestration"]
        profile = spans["run_scheduler_profile"]
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert request.parent_span_id.hex() == PARENT
    assert (routing.parent_span_id, profile.parent_span_id) == (request.span_id, routing.span_id)
    assert spans["pick_endpoints"].parent_span_id == profile.span_id
    assert spans["filter_endpoints"].parent_span_id == profile.span_id
    assert spans["llm_d.epp.scoring"].parent_span_id == profile.span_id
    assert request.start_time_unix_nano <= routing.start_time_unix_nano
    assert routing.end_time_unix_nano <= request.end_time_unix_nano
    assert headers["traceparent"] == f"00-{TRACE}-{request.span_id.hex()}-01"
    assert headers["tracestate"] == "a=b"
    assert len(completions) == 1
    assert (
        attributes_of(request.attributes).items()
        >= {
            "gen_ai.request.id": "id-1",
            "server.address": ADDRESS,
            "http.response.status_code": 200,
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 1,
            "gen_ai.usage.cached_tokens": 4,
        }.items()
    )


@pytest.mark.parametrize(
    ("ratio", "sampler", "headers", "n_spans", "is_sampled"),
    [
        pytest.param(1.0, {}, [], 1, 1, id="ratio_of_one"),
        pytest.param(0.0, {}, [], 0, 0, id="ratio_of_zero"),
        pytest.param(0.0, {}, [context()], 1, 1, id="gateway_sampled"),
        pytest.param(1.0, {}, [context("00")], 0, None, id="gateway_did_not_sample"),
        pytest.param(0.0, {"OTEL_TRACES_SAMPLER": "always_on"}, [], 1, 1, id="variable_first"),
        pytest.param(1.0, {}, [("traceparent", "broken")], 1, 1, id="malformed_context"),
    ],
)
async def test_sampling_is_the_gateways_or_as_configured(
    ratio: float,
    sampler: dict[str, str],
    headers: Sequence[tuple[str, str]],
    n_spans: int,
    is_sampled: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in sampler.items():
        monkeypatch.setenv(name, value)  # the library reads it
    async with traced(make_route(ADDRESS), sampler, ratio) as (port, tracing, receiver, _):
        sent = await exchange(port, *headers)
        await tracing.stop()
        assert receiver.names().count("gateway.request") == n_spans
    assert ("traceparent" in sent) == (is_sampled is not None)
    if is_sampled is not None:
        assert int(sent["traceparent"][-2:], 16) & 1 == is_sampled


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        pytest.param({}, "kvatlas", id="default"),
        pytest.param({"OTEL_SERVICE_NAME": "a"}, "a", id="variable"),
        pytest.param({"OTEL_RESOURCE_ATTRIBUTES": "x=y,service.name=b"}, "b", id="attributes"),
        pytest.param({"OTEL_SERVICE_NAME": ""}, "kvatlas", id="empty_variable"),
        pytest.param({"OTEL_RESOURCE_ATTRIBUTES": "service.name="}, "kvatlas", id="empty_attribute"),
        pytest.param({"OTEL_RESOURCE_ATTRIBUTES": "peer.service.name=b"}, "kvatlas", id="another_attribute"),
    ],
)
async def test_process_is_named_by_the_environment(
    environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)  # the library reads it
    async with traced(make_route(ADDRESS), environment) as (port, tracing, receiver, _):
        await exchange(port)
        await tracing.stop()
    assert receiver.resources[0]["service.name"] == name


async def test_refused_request_has_a_span_with_the_reason() -> None:
    refusal = Refusal(RefusalCode.SERVICE_UNAVAILABLE, "nobody")
    async with traced(refusal) as (port, tracing, receiver, _):
        await exchange(port, context())
        await tracing.stop()
        (span,) = receiver.spans
    assert (span.name, span.status.message) == ("gateway.request", "ServiceUnavailable")
    assert span.status.code == span.status.STATUS_CODE_ERROR


async def test_process_sends_spans_as_its_environment_says(tmp_path: Path) -> None:
    endpoints = {"static": [{"name": "a", "address": "127.0.0.1:9"}]}
    async with receiving() as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "1",
            "OTEL_SERVICE_NAME": "llm-d-router/epp",
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.namespace.name=ns",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        async with serving({"endpoints": endpoints}, tmp_path, environment=environment) as served:
            await exchange(served.ports["extProc"])
            await until(lambda: "gateway.request" in receiver.names(), what="the spans")
            await served.until_metric(f'kvatlas_spans_total{{outcome="sent"}} {float(len(receiver.spans))}')
    assert (
        receiver.resources[0].items()
        >= {
            "service.name": "llm-d-router/epp",
            "k8s.namespace.name": "ns",
        }.items()
    )
    picked = attributes_of(receiver.named("pick_endpoints").attributes)
    assert picked["llm_d.epp.picker.top_endpoints"] == ["a"]
    scorer = attributes_of(receiver.named("llm_d.epp.scorer.queue-scorer").attributes)
    assert scorer["llm_d.epp.scorer.weight"] == 2


class Blocked(SpanExporter):
    """Sends nothing until it is told to stop."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        self.entered.set()
        self.released.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.released.set()


async def test_spans_are_dropped_and_counted_when_too_many_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    exporter, counts = Blocked(), SpanCounts()
    processor = BoundedProcessor(exporter, counts, receiver="http://r:1", limit=512)
    sampled = make_span()
    for _ in range(600):
        processor.on_end(sampled)
    await asyncio.to_thread(exporter.entered.wait)
    assert (counts.n_waiting, counts.outcomes["dropped"]) == (512, 88)
    first, *further = ours(caplog)
    assert first.startswith("512 spans wait for http://r:1, which takes them too slowly or not at all")
    assert len(further) < 10

    await asyncio.to_thread(processor.end, within_s=0.01)
    assert counts.outcomes == {"sent": 0, "failed": 512, "dropped": 88}
    assert ours(caplog)[-1].startswith("spans cannot be sent to http://r:1")


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines logged by kvatlas itself."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("kvatlas")]


class Deaf(Blocked):
    """Ends no export when it is told to stop, as an exporter over HTTP."""

    def shutdown(self) -> None:
        pass


async def test_end_leaves_an_export_that_does_not_end() -> None:
    exporter, counts = Deaf(), SpanCounts()
    processor = BoundedProcessor(exporter, counts, receiver="http://r:1", limit=512)
    for _ in range(512):
        processor.on_end(make_span())
    await asyncio.to_thread(exporter.entered.wait)
    async with asyncio.timeout(20):  # the library has 30 s
        await asyncio.to_thread(processor.end, within_s=0.01)
    assert not exporter.released.is_set()
    exporter.released.set()


async def sent_over_http(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ended: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> SpanCounts:
    """Send one span to a receiver with this answer, and return the counts once the answer has ended."""
    server, counts = await asyncio.start_server(answer, "127.0.0.1", 0), SpanCounts()
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        tracing = Tracing(TracingConfig(sample_ratio=1), environment, url, counts)
        refusing = FixedRouter(Refusal(RefusalCode.SERVICE_UNAVAILABLE, "nobody"))
        tracing.traced(refusing).route(RoutingRequest(path="/"))
        await tracing.stop()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
    return counts


async def test_answer_without_end_is_not_read_when_spans_are_sent_over_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_answered, ended = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_answered
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while n_answered < 2**28:
                writer.write(bytes(65536))
                await writer.drain()
                n_answered += 65536
        writer.close()
        ended.set()

    counts = await sent_over_http(answer, ended, monkeypatch)
    assert (counts.outcomes["sent"], n_answered < 2**28) == (1, True)


async def test_answer_that_goes_on_holds_no_spans_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_session, "ANSWER_S", 0.0)
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()
        ended.set()

    counts = await sent_over_http(answer, ended, monkeypatch)
    assert counts.outcomes["sent"] == 1


def make_span() -> ReadableSpan:
    """Return a sampled span."""
    return ReadableSpan("s", SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1)))


@pytest.mark.parametrize("by_key", [True, False])
async def test_spans_are_sent_over_http_when_the_environment_says_so(
    by_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving_http() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1" if by_key else receiver.url)
        config = TracingConfig(sample_ratio=1, endpoint=receiver.url if by_key else "")
        environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        tracing = Tracing(config, environment, receiver.url, SpanCounts())
        refusing = FixedRouter(Refusal(RefusalCode.SERVICE_UNAVAILABLE, "nobody"))
        tracing.traced(refusing).route(RoutingRequest(path="/"))
        await tracing.stop()
    assert receiver.names() == ["gateway.request"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", id="timeout"),
        pytest.param("OTEL_EXPORTER_OTLP_COMPRESSION", "lz4", id="compression"),
        pytest.param("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000", id="more_than_may_wait"),
    ],
)
async def test_unusable_variable_is_refused_by_its_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingError, match=f"{name}.* cannot be used: "):
        Tracing(TracingConfig(), {name: value}, "http://127.0.0.1:1", SpanCounts())


async def test_unknown_protocol_is_refused_by_the_name_of_its_variable() -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with pytest.raises(TracingError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json', want grpc or"):
        Tracing(TracingConfig(), environment, "http://127.0.0.1:1", SpanCounts())


@pytest.mark.parametrize(
    ("config", "environment", "receiver"),
    [
        pytest.param({}, {}, "", id="nothing_named"),
        pytest.param({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://a:1", id="variable"),
        pytest.param(
            {},
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1"},
            "http://b:1", id="variable_for_traces",
        ),
        pytest.param(
            {"endpoint": "http://c:1"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://c:1", id="key_first"
        ),
        pytest.param({"endpoint": "http://c:1", "enabled": False}, {}, "", id="switched_off"),
        pytest.param({"endpoint": "http://c:1"}, {"OTEL_SDK_DISABLED": "true"}, "", id="disabled"),
        pytest.param({"endpoint": "http://c:1"}, {"OTEL_TRACES_EXPORTER": "none"}, "", id="no_exporter"),
    ],
)  # fmt: skip
def test_receiver_is_the_one_that_is_named(
    config: dict[str, object], environment: dict[str, str], receiver: str
) -> None:
    assert TracingConfig(**config).receiver(environment) == receiver  # type: ignore[arg-type]
