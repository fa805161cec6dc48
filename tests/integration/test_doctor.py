"""Every check of the doctor, provoked on a running process with real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from google.protobuf.struct_pb2 import Value
from typer.testing import CliRunner

from kvatlas.api.doctor.checks import CHECKS
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.app.cli.main import app as command_line
from kvatlas.routing.plan.config_files import ConfigFiles
from support.certificates import certificate_files
from support.clinic import Clinic, clinic, evicted, said, until_held
from support.engine_metrics import metrics_of
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    metadata_of,
    response_body,
    response_headers,
)
from support.fleets import NOWHERE, make_endpoint
from support.recording import player, send
from support.scraping import metrics
from support.serve import ANY_PORTS
from support.waiting import until

IDLE = metrics(0).decode().replace("vllm:num_requests_running 2", "vllm:num_requests_running 0")
BUSY = metrics(1).decode()


async def test_healthy_deployment_has_no_findings_but_those_it_lacks_the_requests_for(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(tmp_path / "token")}}
    async with player() as engine, metrics_of(IDLE) as (url, _):
        healthy = make_endpoint("a", events=engine.events, replay=engine.replay, metrics=url)
        tokenizer = {"remoteTokenizer": {"url": "endpoints"}}
        async with clinic(healthy, server=server, model=tokenizer) as at:
            await until_held(at, engine)
            await at.until_state("load-known", "ok")
            checks = await at.checks()
    unknown = {name for name, check in checks.items() if check["state"] == "unknown"}
    assert {check["state"] for check in checks.values()} <= {"ok", "unknown"}, checks
    assert unknown == {
        "texts-segmented",
        "topics-fit",
        "adapters-named",
        "prompts-tokenized",
        "prefixes-found",
        "expectations-held",
        "responses-shown",
        "picks-obeyed",
    }
    assert checks["events-heard"]["evidence"] == ["a: live, last batch 0"]
    assert list(checks) == [check.name for check in CHECKS]


async def test_endpoint_that_sends_no_events_is_named_with_the_flag_that_mends_it() -> None:
    async with metrics_of(BUSY) as (url, load):
        silent = make_endpoint("a", metrics=url)
        async with clinic(silent, make_endpoint("b", 2, events="")) as at:
            assert (await at.checks())["events-heard"]["state"] == "warn", "b has none by configuration"
            at.age()
            found = await at.until_state("events-heard", "fail")
            load[0] = IDLE
            idle = await at.until_state("events-heard", "warn")
    assert found["evidence"][0].startswith(f"a: nothing heard from {NOWHERE} for 6")
    assert '--kv-events-config \'{"enable_kv_cache_events": true' in found["remedies"][0]
    assert "not known" in found["effect"]
    assert any("and it is idle" in line for line in idle["evidence"])


async def test_lost_connection_is_a_failure() -> None:
    async with player() as engine, clinic(make_endpoint("a", events=engine.events)) as at:
        await until_held(at, engine)
        engine.close()
        found = await at.until_state("events-heard", "fail")
    assert found["evidence"] == [f"a: the connection to {engine.events} is lost"]


async def test_replay_that_is_off_or_too_short_is_told() -> None:
    async with player() as engine, player() as forgetful:
        off = make_endpoint("a", events=engine.events)
        short = make_endpoint("b", 2, events=forgetful.events, replay=forgetful.replay)
        async with clinic(off, short) as at:
            await until_held(at, engine)
            await until_held(at, forgetful, "b")
            await forgetful.say(said(7))
            await until(lambda: _async(bool(at.app.fleet.get("b") and _lost(at, "b"))), what="loss")
            found = await at.until_state("events-whole", "warn")
    assert found["evidence"][0].startswith("a: no replay address")
    assert found["evidence"][1].startswith("b: 6 batches lost")
    assert '"replay_endpoint"' in found["remedies"][0]
    assert '"buffer_steps"' in found["remedies"][1]


def _lost(at: Clinic, name: str) -> int:
    endpoint = at.app.fleet.get(name)
    assert endpoint is not None
    assert endpoint.ranks[0].subscription is not None
    return endpoint.ranks[0].subscription.stream.counters.lost


async def _async(value: bool) -> bool:
    return value


async def test_unreadable_events_unknown_media_and_clocks_are_told() -> None:
    async with player() as engine, clinic(make_endpoint("a", events=engine.events)) as at:
        await until_held(at, engine)
        await send(engine.pub, (b"t", (99).to_bytes(8, "big"), b"\xc1\xc1"))
        await engine.say(said(1, medium="TAPE", ahead_s=3600))
        ahead = await at.until_state("clocks-agree", "warn")
        understood = await at.until_state("events-understood", "warn")
        await engine.say(said(2, ahead_s=-60))

        async def is_behind() -> bool:
            return "ago" in (await at.checks())["clocks-agree"]["evidence"][0]

        await until(is_behind, what="a clock behind")
    assert "3.6e+03 s ahead of ours" in ahead["evidence"][0]
    shown = "\n".join(understood["evidence"])
    assert "unreadable messages or events" in shown
    assert "medium TAPE is in no tier" in shown
    assert "tiers: - {name: tape, media: [TAPE]}" in understood["remedies"]


async def test_message_of_nobody_known_is_told_with_the_topic_it_needs() -> None:
    events = {"mode": "bind", "bind": "tcp://127.0.0.1:0"}
    async with clinic(make_endpoint("a", events=None, replay=None), events=events) as at:
        bound = f"tcp://127.0.0.1:{at.app.ports['events']}"
        async with player(connect=bound) as stranger:

            async def is_told() -> bool:
                await send(stranger.pub, (b"kv@10.9.9.9:1@m", *said(0).parts[1:]))
                return bool((await at.checks())["topics-known"]["state"] == "fail")

            await until(is_told, what="a message that fits no endpoint")
            found = (await at.checks())["topics-known"]
    assert "unknown_endpoint" in found["evidence"][0]
    assert '"topic": "kv@HOST:PORT@MODEL"' in found["remedies"][0]


async def test_dark_and_unbounded_tier_is_told_with_the_flag_of_the_engine() -> None:
    offloading = BUSY + "vllm:kv_offload_total_bytes_total 4096\n"
    async with (
        player() as engine,
        metrics_of(offloading) as (url, _),
        clinic(make_endpoint("a", events=engine.events, metrics=url)) as at,
    ):
        await until_held(at, engine)
        await at.until_state("load-known", "ok")
        for later_s in (0, 10):
            at.app.fleet.tick(now=time.monotonic() + later_s)
        found = await at.until_state("tiers-told", "warn")
        capacity = await at.until_state("capacity-real", "warn")
    assert found["evidence"][0].startswith("a: uses tier cpu and sends no usable event of it")
    assert "self_describing_kv_events" in found["remedies"][0]
    assert "tier cpu is inferred without a bound" in capacity["evidence"][0]


async def test_other_block_size_and_other_capacity_than_the_engine_s_are_told() -> None:
    told = BUSY.replace('block_size="16"', 'block_size="32"')
    tiers = [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 3}]
    async with (
        player() as engine,
        metrics_of(told) as (url, _),
        clinic(make_endpoint("a", events=engine.events, metrics=url), tiers=tiers) as at,
    ):
        await until_held(at, engine)
        sizes = await at.until_state("block-sizes", "warn")
        capacity = await at.until_state("capacity-real", "warn")
    assert sizes["evidence"] == ["a: events have blocks of 16 tokens, its /metrics say 32"]
    assert capacity["evidence"] == ["a: tier gpu is bounded to 3 blocks, the engine has 10"]
    assert capacity["remedies"] == ["tiers[gpu].lruCapacityPerServer: auto"]


async def test_capacity_that_evictions_contradict_is_told() -> None:
    tiers = [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 100}]
    async with player() as engine, clinic(make_endpoint("a", events=engine.events), tiers=tiers) as at:
        await until_held(at, engine)
        for seq in range(1, 20, 2):
            await engine.say(evicted(seq), said(seq + 1))
        found = await at.until_state("capacity-real", "warn")
    assert found["evidence"][0].startswith("a: tier gpu: configured 100, observed 4 +- 1 %")


async def test_capacity_that_evictions_show_is_the_bound_where_none_is_configured() -> None:
    tiers = [{"name": "gpu", "media": ["GPU"]}]
    async with player() as engine, clinic(make_endpoint("a", events=engine.events), tiers=tiers) as at:
        await until_held(at, engine)
        for seq in range(1, 20, 2):
            await engine.say(evicted(seq), said(seq + 1))

        async def bounded() -> bool:
            return at.app.fleet.atlas.occupancy("a")[0].capacity is not None

        await until(bounded, what="a bound")
        async with at.session.get(f"{at.url}/v1/endpoints/a") as answer:
            tier = (await answer.json())["tiers"][0]
        checks = await at.checks()
    assert (tier["capacity"], tier["configuredCapacity"]) == (5, "auto")
    assert tier["capacitySummary"] == "configured auto, observed 4 +- 1 %"
    observed = tier["observedCapacity"]
    assert (observed["blocks"], observed["error"], observed["basis"]) == (4, 0.01, "evictions")
    assert checks["capacity-real"]["state"] == "ok"


async def test_publisher_that_begins_anew_again_and_again_is_told() -> None:
    async with player() as engine, clinic(make_endpoint("a", events=engine.events)) as at:
        await until_held(at, engine)
        for _ in range(5):
            at.app.fleet.reset("a")
        found = await at.until_state("publishers-steady", "warn")
    assert found["evidence"] == ["a: began 5 new lives"]


async def test_load_that_is_not_known_or_seldom_read_is_told() -> None:
    scrape = {"interval": "500ms"}
    async with metrics_of("nothing 1\n") as (url, _):
        endpoints = [
            make_endpoint("a"),
            make_endpoint("b", 2, metrics=url),
            make_endpoint("c", 3, metrics="http://127.0.0.1:1/metrics"),
        ]
        async with clinic(*endpoints, metricsScrape=scrape) as at:
            assert (await at.checks())["load-known"]["state"] in ("warn", "fail")
            await until(lambda: _async(_n_failing(at) == 2), what="two failures")
            found = await at.until_state("load-known", "fail")
            fresh = (await at.checks())["load-fresh"]
    assert [line[:3] for line in found["evidence"]] == ["b: ", "c: "]
    assert any("metricsScrape.engines" in remedy for remedy in found["remedies"])
    assert (fresh["state"], fresh["remedies"]) == ("warn", ["metricsScrape.interval: 50ms"])


def _n_failing(at: Clinic) -> int:
    statuses = [at.app.fleet.scrape_status(endpoint.name) for endpoint in at.app.fleet]
    return sum(status is not None and status.failing for status in statuses)


USAGE = b'{"usage": {"prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 48}}}'
JSON = ("content-type", "application/json")


def answer(served: str | None, body: bytes = USAGE) -> list[pb.ProcessingRequest]:
    """An engine's answer, from the endpoint at `served`."""
    key, value = "x-gateway-destination-endpoint-served", Value(string_value=served or "")
    told = metadata_of("envoy.lb", key, value) if served else None
    return [response_headers(JSON, metadata=told), response_body(body, end=True)]


class Sent(NamedTuple):
    """Twenty requests of one kind, and what the gateway shows of their answers."""

    answers: Sequence[pb.ProcessingRequest] = ()
    config: pb.ProtocolConfiguration = DUPLEX
    path: str = "/v1/completions"


@pytest.mark.parametrize(
    ("sent", "name", "state", "evidence", "remedy"),
    [
        pytest.param(
            Sent(path="/v1/chat/completions"),
            "prompts-tokenized", "warn", "20 of 20 without token ids: no_tokenizer", "model.tokenizer:",
            id="no_tokenizer",
        ),
        pytest.param(
            Sent(answer("127.0.0.1:1")),
            "prefixes-found", "fail",
            "engines found 960 of 1280 prompt tokens in their caches; foreseen were 0", "--chat-template",
            id="keys_that_never_match",
        ),
        pytest.param(
            Sent(config=BUFFERED),
            "responses-shown", "warn", "of 20 of 20 requests the gateway did not show the response",
            "response_header_mode: SEND", id="hidden_responses",
        ),
        pytest.param(
            Sent(answer("127.0.0.1:1", b"{}")),
            "responses-shown", "warn", "20 of 20 answers had no token counts", "include_usage", id="no_usage",
        ),
        pytest.param(
            Sent(answer("10.9.9.9:1")),
            "picks-obeyed", "fail", "20 of 20 answers came from an endpoint that kvatlas had not named",
            "x-gateway-destination-endpoint", id="served_elsewhere",
        ),
        pytest.param(
            Sent(answer(None)),
            "picks-obeyed", "warn", "of 20 of 20 answers the gateway did not tell who served them",
            "response_attributes: [upstream.address]", id="served_by_nobody_told",
        ),
    ],
)  # fmt: skip
async def test_what_becomes_of_requests_is_told(
    sent: Sent, name: str, state: str, evidence: str, remedy: str
) -> None:
    async with clinic(make_endpoint("a", events="")) as at:
        assert (await at.checks())[name]["state"] == "unknown"
        await at.requests(20, config=sent.config, path=sent.path, answers=sent.answers)
        found = await at.until_state(name, state)
    assert evidence in found["evidence"]
    assert remedy in found["remedies"][0]


async def test_expectations_that_do_not_hold_are_told_with_the_verdict() -> None:
    nothing_cached = USAGE.replace(b'"cached_tokens": 48', b'"cached_tokens": 0')
    async with player() as engine, clinic(make_endpoint("a", events=engine.events)) as at:
        await until_held(at, engine)
        await at.requests(20, answers=answer("127.0.0.1:1", nothing_cached))
        found = await at.until_state("expectations-held", "warn")
    assert found["evidence"][0].startswith("a: 0 of 20 requests reused what was expected; ")
    assert found["remedies"][0].startswith("docs/audit.md says what each verdict calls for: ")


async def test_requests_that_went_well_are_told_so() -> None:
    async with clinic(make_endpoint("a", events="")) as at:
        await at.requests(20, answers=answer("127.0.0.1:1"))
        obeyed = await at.until_state("picks-obeyed", "ok")
        assert (await at.checks())["prompts-tokenized"]["state"] == "ok"
        assert (await at.checks())["responses-shown"]["state"] == "ok"
    assert obeyed["evidence"] == ["20 of 20 answers came from the endpoint picked"]


async def test_refused_file_and_python_index_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVATLAS_INDEX", "reference")
    file = tmp_path / "kvatlas.yaml"
    head = {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", "server": ANY_PORTS}
    file.write_bytes(msgspec.yaml.encode(head))
    async with clinic(files=ConfigFiles(file)) as at:
        assert (await at.checks())["endpoints-there"]["state"] == "fail"
        assert (await at.checks())["native-index"]["state"] == "warn"
        file.write_bytes(msgspec.yaml.encode(head | {"weights": {"queue": -1}}))
        found = await at.until_state("configuration-in-force", "fail")
    assert "weights.queue: found -1" in found["evidence"][0]


async def doctor(*arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `kvatlas doctor`."""
    runner = CliRunner(env={"COLUMNS": "200"})
    result = await asyncio.to_thread(runner.invoke, command_line, ["doctor", *arguments])
    return result.exit_code, result.stdout, result.stderr


async def test_command_asks_a_running_process_with_its_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(token), "protectReads": True}}
    async with clinic(server=server) as at:
        refused = await doctor("--url", at.url)
        table = await doctor("--url", at.url, "--token-file", str(token))
        as_json = await doctor("--url", at.url, "--token-file", str(token), "--json")
    assert (refused[0], "see --token-file" in refused[2]) == (2, True)
    assert (table[0], as_json[0]) == (1, 1)
    assert "mend: endpoints.static: [{name: vllm-0, address: HOST:PORT}]" in table[1]
    assert json.loads(as_json[1])["state"] == "fail"


@pytest.mark.parametrize(
    ("sections", "name", "state", "evidence"),
    [
        pytest.param({"endpoints": {}}, "endpoints-there", "fail", "0 endpoints", id="no_endpoint"),
        pytest.param({}, "tokenizer-there", "warn", "the model: no tokenizer", id="no_tokenizer"),
        pytest.param(
            {"model": {"tokenizer": "nowhere"}}, "tokenizer-there", "fail", "nowhere does not exist", id="lost_tokenizer"
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "dataParallelSize": 2}]}},
            "ports-apart", "fail", "a: tcp://h:5558 is one rank's events and another's replay", id="ports",
        ),
        pytest.param({}, "changes-guarded", "warn", "0.0.0.0:8080", id="unguarded"),
        pytest.param(
            {"server": {"auth": {"bearerTokenFile": "nowhere"}}}, "secrets-usable", "fail", "nowhere", id="no_token"
        ),
        pytest.param(
            {"server": {"auth": {"metricsTokenFile": "lost"}}}, "secrets-usable", "fail",
            "server.auth.metricsTokenFile: cannot read lost", id="no_metrics_token",
        ),
        pytest.param(
            {"server": {"tls": {"certFile": "tls.crt", "keyFile": "tls.key"}}},
            "secrets-usable", "ok", "ends in 3650.0 days", id="certificate",
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "events": ""}]}},
            "events-heard", "warn", "a: has no event stream", id="no_events",
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "replay": ""}]}},
            "events-whole", "warn", "a: no replay address", id="no_replay",
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "metrics": ""}]}},
            "load-known", "warn", "a: is not scraped", id="not_scraped",
        ),
        pytest.param(
            {"metricsScrape": {"interval": "1s"}}, "load-fresh", "warn", "every 1 s", id="seldom_scraped"
        ),
        pytest.param(
            {"tiers": [{"name": "gpu"}, {"name": "cpu", "source": "inferred"}]},
            "capacity-real", "warn", "tier cpu is inferred without a bound", id="no_bound",
        ),
    ],
)  # fmt: skip
async def test_file_alone_shows_what_is_wrong_with_it(
    sections: dict[str, Any], name: str, state: str, evidence: str, tmp_path: Path
) -> None:
    certificate_files(tmp_path)
    file = tmp_path / "kvatlas.yaml"
    endpoints = {"static": [{"name": "a", "address": "h:1"}]}
    head = {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", "endpoints": endpoints}
    file.write_bytes(msgspec.yaml.encode(head | sections))

    status, stdout, _ = await doctor("--config", str(file), "--json")

    answer = json.loads(stdout)
    found = next(check for check in answer["checks"] if check["name"] == name)
    assert status == (1 if answer["state"] == "fail" else 0)
    assert found["state"] == state
    assert evidence in "\n".join(found["evidence"])
    assert state == "ok" or (found["effect"] and found["remedies"])


async def test_file_alone_that_is_refused_is_bad(tmp_path: Path) -> None:
    (tmp_path / "kvatlas.yaml").write_text("weights: 3\n")

    status, _, stderr = await doctor("--config", str(tmp_path / "kvatlas.yaml"))

    assert (status, "kind: missing" in stderr) == (1, True)
