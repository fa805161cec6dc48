"""The doctor's checks of endpoints, events, tiers and load, on a running process with real sockets."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from kvatlas.api.doctor.checks import CHECKS
from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.endpoint import Endpoint
from support.engine_metrics import metrics_of
from support.fleets import NOWHERE, make_endpoint
from support.local_process import LocalProcess, local_process, removed_block, stored_prompt, until_held
from support.recording import player, send
from support.scraping import metrics
from support.serve import ANY_PORTS
from support.stage_servers import sglang_metrics
from support.waiting import until

IDLE = metrics(0).decode().replace("vllm:num_requests_running 2", "vllm:num_requests_running 0")
BUSY = metrics(1).decode()


async def test_healthy_deployment_has_no_findings_except_unknown_ones_when_no_request_came(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("secret")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(tmp_path / "token")}}
    async with player() as engine, metrics_of(IDLE) as (url, _):
        healthy = make_endpoint("a", events=engine.events, replay=engine.replay, metrics=url)
        tokenizer = {"remoteTokenizer": {"url": "endpoints"}}
        async with local_process(healthy, server=server, model=tokenizer) as process:
            await until_held(process, engine)
            await process.until_state("load-known", "ok")
            checks = await process.checks()
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


async def test_endpoint_is_named_with_the_missing_flag_when_it_sends_no_events() -> None:
    async with metrics_of(BUSY) as (url, load):
        silent = make_endpoint("a", metrics=url)
        async with local_process(silent, make_endpoint("b", 2, events="")) as process:
            assert (await process.checks())["events-heard"]["state"] == "warn", (
                "b is configured without events"
            )
            process.age()
            found = await process.until_state("events-heard", "fail")
            load[0] = IDLE
            idle = await process.until_state("events-heard", "warn")
    assert found["evidence"][0].startswith(f"a: nothing heard from {NOWHERE} for 6")
    assert '--kv-events-config \'{"enable_kv_cache_events": true' in found["remedies"][0]
    assert "not known" in found["effect"]
    assert any("and it is idle" in line for line in idle["evidence"])


async def test_check_fails_when_the_connection_is_lost() -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        engine.close()
        found = await process.until_state("events-heard", "fail")
    assert found["evidence"] == [f"a: the connection to {engine.events} is lost"]


async def test_replay_is_reported_when_it_is_off_or_too_short() -> None:
    async with player() as engine, player() as forgetful:
        off = make_endpoint("a", events=engine.events)
        short = make_endpoint("b", 2, events=forgetful.events, replay=forgetful.replay)
        async with local_process(off, short) as process:
            await until_held(process, engine)
            await until_held(process, forgetful, "b")
            await forgetful.publish(stored_prompt(7))
            await until(lambda: _async(bool(process.app.fleet.get("b") and _lost(process, "b"))), what="loss")
            found = await process.until_state("events-whole", "warn")
    assert found["evidence"][0].startswith("a: no replay address")
    assert found["evidence"][1].startswith("b: 6 batches lost")
    assert '"replay_endpoint"' in found["remedies"][0]
    assert '"buffer_steps"' in found["remedies"][1]


def _lost(process: LocalProcess, name: str) -> int:
    endpoint = process.app.fleet.get(name)
    assert endpoint is not None
    assert endpoint.ranks[0].subscription is not None
    return endpoint.ranks[0].subscription.stream.counters.lost


async def _async(value: bool) -> bool:
    return value


async def test_unreadable_events_unknown_media_and_wrong_clocks_are_reported() -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        await send(engine.pub, (b"t", (99).to_bytes(8, "big"), b"\xc1\xc1"))
        await engine.publish(stored_prompt(1, medium="TAPE", ahead_s=3600))
        ahead = await process.until_state("clocks-agree", "warn")
        understood = await process.until_state("events-understood", "warn")
        await engine.publish(stored_prompt(2, ahead_s=-60))

        async def is_behind() -> bool:
            return "ago" in (await process.checks())["clocks-agree"]["evidence"][0]

        await until(is_behind, what="a clock behind")
    assert "3.6e+03 s ahead of ours" in ahead["evidence"][0]
    shown = "\n".join(understood["evidence"])
    assert "unreadable messages or events" in shown
    assert "medium TAPE is in no tier" in shown
    assert "tiers: - {name: tape, media: [TAPE]}" in understood["remedies"]


async def test_unreadable_messages_are_those_of_the_endpoint_and_not_of_each_rank() -> None:
    async with player() as engine:
        endpoint = make_endpoint("a", events=engine.events, dataParallelSize=2)
        async with local_process(endpoint) as process:
            await until_held(process, engine)
            await send(engine.pub, (b"t", (99).to_bytes(8, "big"), b"\xc1\xc1"))
            found = await process.until_state("events-understood", "warn")
    assert [line.partition(": ")[0] for line in found["evidence"] if "unreadable" in line] == ["a"]


async def test_silent_engine_is_given_flags_of_its_own() -> None:
    async with (
        metrics_of(sglang_metrics()) as (url, _),
        local_process(make_endpoint("a", metrics=url)) as process,
    ):
        await process.until_state("load-known", "ok")
        process.age()
        heard = (await process.checks())["events-heard"]
    assert (heard["state"], len(heard["remedies"])) == ("warn", 1)
    assert heard["remedies"][0].startswith("--kv-events-config")


async def test_medium_of_a_store_is_given_a_shared_tier() -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        await engine.publish(stored_prompt(1, medium="MOONCAKE_CPU"))
        understood = await process.until_state("events-understood", "warn")
        fit = (await process.checks())["events-fit"]
    assert understood["remedies"] == fit["remedies"]
    assert understood["remedies"] == ["tiers: - {name: store, media: [MOONCAKE_CPU], scope: shared}"]


async def test_unusable_event_is_no_reason_to_keep_more_for_replay() -> None:
    async with (
        player() as engine,
        local_process(make_endpoint("a", events=engine.events, replay=engine.replay)) as process,
    ):
        await until_held(process, engine)
        topic, seq, _ = stored_prompt(1).parts
        await engine.send((topic, seq, b"\xc1\xc1"))
        whole = await process.until_state("events-whole", "warn")
    assert whole["evidence"] == ["a: some events could not be used"]
    assert "buffer_steps" not in whole["remedies"][0]


async def test_replay_without_answers_is_not_said_to_be_too_short() -> None:
    async with player() as engine, player() as deaf:
        endpoint = make_endpoint("a", events=engine.events, replay=deaf.replay)
        async with local_process(endpoint) as process:
            await until_held(process, engine)
            deaf.close()
            await engine.publish(stored_prompt(3))
            await until(lambda: _async(_lost(process, "a") == 2), what="batches given up")
            whole = await process.until_state("events-whole", "warn")
    assert whole["evidence"][0].startswith("a: 2 batches lost; 3 of ")
    assert '"replay_endpoint"' in whole["remedies"][0]


async def test_needed_topic_is_reported_when_a_message_fits_no_endpoint() -> None:
    events = {"mode": "bind", "bind": "tcp://127.0.0.1:0"}
    async with local_process(make_endpoint("a", events=None, replay=None), events=events) as process:
        bound = f"tcp://127.0.0.1:{process.app.ports['events']}"
        async with player(connect=bound) as stranger:

            async def is_reported() -> bool:
                await send(stranger.pub, (b"kv@10.9.9.9:1@m", *stored_prompt(0).parts[1:]))
                return bool((await process.checks())["topics-known"]["state"] == "fail")

            await until(is_reported, what="a message that fits no endpoint")
            found = (await process.checks())["topics-known"]
    assert "unknown_endpoint" in found["evidence"][0]
    assert '"topic": "kv@HOST:PORT@MODEL"' in found["remedies"][0]


async def test_engine_flag_is_reported_when_a_tier_is_dark_and_unbounded() -> None:
    offloading = BUSY + "vllm:kv_offload_total_bytes_total 4096\n"
    async with (
        player() as engine,
        metrics_of(offloading) as (url, _),
        local_process(make_endpoint("a", events=engine.events, metrics=url)) as process,
    ):
        await until_held(process, engine)
        await process.until_state("load-known", "ok")
        for later_s in (0, 10):
            process.app.fleet.tick(now=time.monotonic() + later_s)
        found = await process.until_state("tiers-told", "warn")
        capacity = await process.until_state("capacity-real", "warn")
    assert found["evidence"][0].startswith("a: uses tier cpu and sends no usable event of it")
    assert "self_describing_kv_events" in found["remedies"][0]
    assert "tier cpu is inferred without a bound" in capacity["evidence"][0]


async def test_block_size_and_capacity_are_reported_when_the_engine_has_others() -> None:
    other = BUSY.replace('block_size="16"', 'block_size="32"')
    tiers = [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 3}]
    async with (
        player() as engine,
        metrics_of(other) as (url, _),
        local_process(make_endpoint("a", events=engine.events, metrics=url), tiers=tiers) as process,
    ):
        await until_held(process, engine)
        sizes = await process.until_state("block-sizes", "warn")
        capacity = await process.until_state("capacity-real", "warn")
    assert sizes["evidence"] == ["a: events have blocks of 16 tokens, its /metrics say 32"]
    assert capacity["evidence"] == ["a: tier gpu is bounded to 3 blocks, the engine has 10"]
    assert capacity["remedies"] == ["tiers[gpu].lruCapacityPerServer: auto"]


async def test_capacity_is_reported_when_evictions_contradict_it() -> None:
    tiers = [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 100}]
    async with (
        player() as engine,
        local_process(make_endpoint("a", events=engine.events), tiers=tiers) as process,
    ):
        await until_held(process, engine)
        for seq in range(1, 20, 2):
            await engine.publish(removed_block(seq), stored_prompt(seq + 1))
        found = await process.until_state("capacity-real", "warn")
    assert found["evidence"][0].startswith("a: tier gpu: configured 100, observed 4 +- 1 %")


async def test_observed_capacity_is_the_bound_when_none_is_configured() -> None:
    tiers = [{"name": "gpu", "media": ["GPU"]}]
    async with (
        player() as engine,
        local_process(make_endpoint("a", events=engine.events), tiers=tiers) as process,
    ):
        await until_held(process, engine)
        for seq in range(1, 20, 2):
            await engine.publish(removed_block(seq), stored_prompt(seq + 1))

        async def bounded() -> bool:
            return process.app.fleet.atlas.occupancy("a")[0].capacity is not None

        await until(bounded, what="a bound")
        async with process.session.get(f"{process.url}/v1/endpoints/a") as answer:
            tier = (await answer.json())["tiers"][0]
        checks = await process.checks()
    assert (tier["capacity"], tier["configuredCapacity"]) == (5, "auto")
    assert tier["capacitySummary"] == "configured auto, observed 4 +- 1 %"
    observed = tier["observedCapacity"]
    assert (observed["blocks"], observed["error"], observed["basis"]) == (4, 0.01, "evictions")
    assert checks["capacity-real"]["state"] == "ok"


async def test_publisher_is_reported_when_it_restarts_again_and_again() -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        for _ in range(5):
            process.app.fleet.reset("a")
        found = await process.until_state("publishers-steady", "warn")
    assert found["evidence"] == ["a: began 5 new lives"]


def endpoint_of(process: LocalProcess) -> Endpoint:
    endpoint = process.app.fleet.get("a")
    assert endpoint is not None
    return endpoint


async def test_publisher_is_reported_when_its_replays_contradict_it() -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        rank = endpoint_of(process).ranks[0]
        assert rank.subscription is not None
        rank.subscription.stream.counters.lying_stamps = 2
        checks = await process.checks()
    assert checks["publishers-steady"]["state"] == "warn"
    assert checks["publishers-steady"]["evidence"] == [
        "a: 2 of its replays have other time stamps than its live batches; they are no evidence any more"
    ]


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        pytest.param(({"gpu": 4}, {"gpu": 3}, {"gpu": 4}, 5), "label kvatlas.io/drops-last-block of the endpoint: 'true'", id="drop"),
        pytest.param(
            ({"gpu": 1, "cpu": 3}, {"gpu": 1, "cpu": 2}, {"gpu": 1, "cpu": 4}, 4),
            "label kvatlas.io/reuses-whole-prompts of the endpoint: 'false'", id="cap",
        ),
        pytest.param(
            ({"gpu": 1, "cpu": 2}, {"gpu": 1, "cpu": 2, "beyond": 1}, {"gpu": 1, "cpu": 4}, 4),
            "label kvatlas.io/reuses-whole-prompts of the endpoint: 'true'", id="no_cap",
        ),
    ],
)  # fmt: skip
async def test_key_is_named_for_each_rule_that_answers_contradict(
    answer: tuple[dict[str, int], dict[str, int], dict[str, int], int], key: str
) -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        size = endpoint_of(process).ranks[0].ledger.block_size
        assert size is not None
        expected, reused, held = ({tier: n * size for tier, n in part.items()} for part in answer[:3])
        found = Audited("a", Verdict.UNKNOWN, None, expected, reused, held, prompt_tokens=answer[3] * size)
        for _ in range(4):
            process.app.fleet.audited(found, now=0.0)
        shown = await process.until_state("events-understood", "warn")
    assert key in str(shown)


async def test_load_is_reported_when_it_is_unknown_or_seldom_read() -> None:
    scrape = {"interval": "500ms"}
    async with metrics_of("nothing 1\n") as (url, _):
        endpoints = [
            make_endpoint("a"),
            make_endpoint("b", 2, metrics=url),
            make_endpoint("c", 3, metrics="http://127.0.0.1:1/metrics"),
        ]
        async with local_process(*endpoints, metricsScrape=scrape) as process:
            assert (await process.checks())["load-known"]["state"] in ("warn", "fail")
            await until(lambda: _async(_n_failing(process) == 2), what="two failures")
            found = await process.until_state("load-known", "fail")
            fresh = (await process.checks())["load-fresh"]
    assert [line[:3] for line in found["evidence"]] == ["b: ", "c: "]
    assert any("metricsScrape.engines" in remedy for remedy in found["remedies"])
    assert (fresh["state"], fresh["remedies"]) == ("warn", ["metricsScrape.interval: 50ms"])


async def test_remedy_of_an_unknown_load_is_that_of_the_last_failure() -> None:
    async with contextlib.AsyncExitStack() as server:
        url, _ = await server.enter_async_context(metrics_of("nothing 1\n"))
        async with local_process(make_endpoint("a", metrics=url)) as process:
            found = await process.until_state("load-known", "fail")
            assert "metricsScrape.engines" in found["remedies"][0]
            await server.aclose()

            async def refused() -> bool:
                found.update((await process.checks())["load-known"])
                return "cannot connect" in found["evidence"][0]

            await until(refused, what="a refused connection")
    assert [remedy[:27] for remedy in found["remedies"]] == ["endpoints.static[].metrics:"]


def _n_failing(process: LocalProcess) -> int:
    statuses = [process.app.fleet.scrape_status(endpoint.name) for endpoint in process.app.fleet]
    return sum(status is not None and status.failing for status in statuses)


async def test_tier_that_only_some_servers_call_remote_is_reported() -> None:
    tiers = [{"name": "gpu", "media": ["GPU"]}, {"name": "disk", "media": ["STORAGE"]}]
    async with (
        player() as local,
        player() as remote,
        local_process(
            make_endpoint("a", events=local.events), make_endpoint("b", 2, events=remote.events), tiers=tiers
        ) as process,
    ):
        await until_held(process, local)
        await until_held(process, remote, "b")
        await local.publish(stored_prompt(1, medium="STORAGE"))
        await until(lambda: _async(bool(process.app.fleet.atlas.occupancy("a")[1].residencies)), what="disk")
        await remote.publish(stored_prompt(1, medium="STORAGE", locality="REMOTE"))
        found = await process.until_state("tiers-told", "warn")
    assert found["evidence"] == [
        "tier disk: events of some servers say that its blocks are remote, and others hold blocks of their own"
    ]
    assert found["remedies"] == ["tiers: - {name: disk-remote, media: [STORAGE/REMOTE], scope: shared}"]
