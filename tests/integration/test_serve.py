"""`kvatlas serve` as a user sees it: ready, degraded, wrongly configured, stopped."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE
from kvatlas.configs.listeners import DRAIN_S
from support.ext_proc import DUPLEX, request_headers
from support.forks import fork
from support.recording import player, read_frames, send
from support.serve import ANY_PORTS, GIVES_NOTICE, Served, serving
from support.waiting import PATIENCE_S, until

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def endpoint(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "address": "127.0.0.1:1", "events": "tcp://127.0.0.1:1", "replay": "", **more}


async def run_serve(config: str, tmp_path: Path, *flags: str) -> tuple[int, str]:
    """Run a `kvatlas serve` that ends by itself; return exit status and stderr."""
    file = tmp_path / "kvatlas.yaml"
    file.write_text(config)
    process = await fork("serve", "--config", str(file), *flags)
    async with asyncio.timeout(PATIENCE_S):
        stderr = await process.stderr.read()
        return await process.wait(), stderr.decode()


HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"


@pytest.mark.parametrize(
    ("config", "flags", "wanted"),
    [
        pytest.param(HEAD + "servr: {}\n", (), r"servr.*server", id="unknown_key"),
        pytest.param(HEAD + "weights: {queue: -1}\n", (), r"weights\.queue.*-1", id="impossible_value"),
        pytest.param(
            HEAD + "model: {tokenizer: nowhere}\n", (), r"nowhere.*(no such|not exist)", id="no_tokenizer"
        ),
        pytest.param(HEAD, ("--rest", "elsewhere"), r"--rest: found 'elsewhere'", id="bad_flag"),
        pytest.param(HEAD, ("--log-level", "loud"), r"--log-level is 'loud'", id="bad_log_level"),
    ],
)
async def test_wrong_configuration_stops_the_start_with_one_clear_line(
    config: str, flags: tuple[str, ...], wanted: str, tmp_path: Path
) -> None:
    status, stderr = await run_serve(config, tmp_path, *flags)
    assert status == 2
    assert re.search(wanted, stderr), stderr
    assert "Traceback" not in stderr


async def test_port_in_use_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag, setting in (("--rest", "server.rest"), ("--ext-proc", "server.extProc")):
            others = [f"--{name}=127.0.0.1:0" for name in ("ext-proc", "health", "rest", "metrics")]
            status, stderr = await run_serve(HEAD, tmp_path, *others, flag, address)
            assert (status, setting in stderr, address in stderr) == (2, True, True), stderr
            assert "Traceback" not in stderr


@pytest.mark.slow
async def test_process_serves_and_logs_once_when_an_endpoint_is_down(
    tmp_path: Path,
) -> None:
    async with serving({"endpoints": {"static": [endpoint()]}}, tmp_path) as served:
        row = await served.get("/v1/endpoints/a")
        answer = await served.post("/v1/score", {"model": "m", "token_ids": [1, 2, 3]})
    assert (row["load"], row["publishers"][0]["trust"], row["scrape"]["failing"]) == (None, "dark", True)
    assert answer["picked"] == ["a"]
    assert sum("scraping endpoint a fails" in line for line in served.log) == 1


@pytest.mark.slow
async def test_garbage_on_the_event_socket_is_counted_and_no_block_is_lost(
    golden: Path, tmp_path: Path
) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:20]
    async with player() as playing:
        config = {
            "endpoints": {"static": [endpoint(events=playing.events, replay=playing.replay, metrics="")]}
        }
        async with serving(config, tmp_path) as served:
            await playing.publish(*frames)
            await served.until_applied("a", frames[-1].seq)
            before = (await served.get("/v1/endpoints/a"))["tiers"]
            for parts in ((b"x",), (b"t", b"123", b"p"), (b"t", (99).to_bytes(8, "big"), b"\xc1\xc1")):
                await send(playing.pub, parts)
            await served.until_metric(r'kvatlas_events_rejected_total{endpoint="a",reason="bad_frames"} 2.0')
            after = (await served.get("/v1/endpoints/a"))["tiers"]
    assert before == after
    assert before[0]["residencies"] > 0
    assert sum("unreadable (bad_frames)" in line for line in served.log) == 1


async def test_event_address_in_use_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        off = 'server: {extProc: "", health: "", rest: "", metrics: ""}\n'
        status, stderr = await run_serve(HEAD + off + f"events: {{mode: bind, bind: '{address}'}}", tmp_path)
    (line,) = [line for line in stderr.splitlines() if line.startswith("kvatlas: ")]
    assert (status, "events.bind" in line, f"{address}'" in line) == (2, True, True), stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
async def test_every_metric_is_documented_and_every_documented_metric_is_there(
    golden: Path, tmp_path: Path
) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:5]
    async with player() as playing:
        static = [endpoint(events=playing.events, replay=playing.replay)]
        tiers = [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 100}]
        lmcache = {"acceptEvents": True, "directory": {"url": "http://127.0.0.1:9"}}
        mesh = {"listen": "tcp://127.0.0.1:0", "discover": {"list": ["tcp://127.0.0.1:9"]}}
        replicas = {"transport": "mesh", "mesh": mesh}
        config = {"endpoints": {"static": static}, "tiers": tiers, "lmcache": lmcache, "replicas": replicas}
        async with serving(config, tmp_path) as served:
            await playing.publish(*frames)
            await served.until_applied("a", frames[-1].seq)
            text = await served.metrics()
    there = set(re.findall(r"^# TYPE (kvatlas_\w+) (?!unknown)", text, flags=re.MULTILINE))
    documented = set(re.findall(r"^\| `(kvatlas_\w+)`", DOC.read_text(), flags=re.MULTILINE))
    assert there == documented


async def first_answer(channel: grpc.aio.Channel) -> pb.ProcessingResponse:
    """Return the picker's first response to a request without body."""
    process: grpc.aio.StreamStreamMultiCallable[pb.ProcessingRequest, pb.ProcessingResponse] = (
        channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
    )
    answer = await process(iter([request_headers(end=True)])).read()
    assert isinstance(answer, pb.ProcessingResponse)
    return answer


async def test_dialect_is_chosen_by_flag(tmp_path: Path) -> None:
    async with (
        serving({}, tmp_path, "--compat", "llm-d", "--secure-serving", "false") as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}") as channel,
    ):
        assert (await first_answer(channel)).immediate_response.status.code == 500


async def test_health_checks_are_answered_until_a_gateway_can_notice_the_shutdown(
    tmp_path: Path,
) -> None:
    async with (
        serving({"server": ANY_PORTS | GIVES_NOTICE}, tmp_path) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}") as channel,
    ):
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        asked = HealthCheckRequest(service=EXT_PROC_SERVICE)
        assert (await check(asked)).status == HealthCheckResponse.SERVING
        served.process.terminate()

        async def says_not_serving() -> bool:
            return bool((await check(asked)).status == HealthCheckResponse.NOT_SERVING)

        await until(says_not_serving, what="the end to be noticed")
        for _ in range(20):
            assert (await first_answer(channel)).immediate_response.status.code == 503
        await served.process.wait()


async def test_requests_are_taken_until_the_time_of_notice_is_over(tmp_path: Path) -> None:
    async with (
        serving({"server": ANY_PORTS | {"drainNotice": "1h"}}, tmp_path, killed_by=signal.SIGTERM) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}") as channel,
    ):
        assert (await first_answer(channel)).immediate_response.status.code == 503
        served.process.terminate()
        await until(lambda: status_is(served, 503), what="the end")
        for _ in range(20):
            assert (await first_answer(channel)).immediate_response.status.code == 503
        served.process.terminate()  # a second signal ends it at once


async def status_is(served: Served, status: int) -> bool:
    return await served.status("/readyz") == status


async def test_empty_fleet_is_ready_and_responds_that_it_has_no_endpoint(tmp_path: Path) -> None:
    async with serving({}, tmp_path) as served:
        answer = await served.post("/v1/score", {"model": "m", "token_ids": [1]})
        openapi = await served.get("/openapi.json")
        assert await served.status("/docs") == 200
        assert await served.status("/healthz") == 200
    assert answer["error"]["code"] == "ServiceUnavailable"
    assert "endpoints.static" in answer["error"]["message"]
    assert {"/query", "/v1/score", "/v1/endpoints", "/readyz"} <= set(openapi["paths"])


async def test_body_longer_than_the_bound_is_refused_and_the_next_request_served(tmp_path: Path) -> None:
    bound = 8388608
    async with serving({}, tmp_path) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.ports["rest"])
        writer.write(b"POST /query HTTP/1.1\r\nHost: here\r\nContent-Length: 20000000\r\n\r\n")
        writer.write(
            bytes(bound + 1)
        )  # the rest would meet a closed connection, whose reset can overtake the answer
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert await served.status("/healthz") == 200
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"RequestEntityTooLarge" in answer
    assert str(bound).encode() in answer


@pytest.mark.parametrize("field", ["cache_salt", "lora_name", "model"])
async def test_half_a_character_is_refused_with_its_field(field: str, tmp_path: Path) -> None:
    async with serving({}, tmp_path) as served:
        answer = await served.post("/query", {"token_ids": [1], field: "\ud800"})
    assert answer["error"]["code"] == "UnprocessableEntity"
    assert answer["error"]["detail"][0]["field"] == field


async def test_errors_have_one_form_and_contain_nothing_of_the_prompt(tmp_path: Path) -> None:
    prompt = "never-to-be-shown"
    async with serving({}, tmp_path) as served:
        answers = [
            await served.post("/query", {"token_ids": prompt}),
            await served.post("/v1/score", {"prompt": prompt, "unknown": prompt}),
            await served.get("/v1/endpoints/nobody"),
        ]
    for answer in answers:
        assert set(answer["error"]) == {"code", "message", "detail"}
        assert prompt not in str(answer)
    assert prompt not in "\n".join(served.log)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_ends_the_process_at_once_while_requests_are_in_flight(
    number: signal.Signals, tmp_path: Path
) -> None:
    async with (
        serving({}, tmp_path, killed_by=number) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}") as channel,
    ):
        process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        )
        stream = process()
        await stream.write(request_headers(config=DUPLEX).SerializeToString())
        served.process.send_signal(number)
        await served.until_logged("stopping: finishing requests in flight")
        served.process.send_signal(number)
        async with asyncio.timeout(DRAIN_S * 0.8):
            await served.process.wait()
