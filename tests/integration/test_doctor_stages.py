"""The doctor's checks of prefill, decode and encode servers: a running process, engines and sidecars over real HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from kvatlas.api.doctor.check import Result, examine
from kvatlas.api.doctor.checks import CHECKS
from kvatlas.api.doctor.deployment import Deployment
from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.fleets import make_endpoint, with_endpoints
from support.local_process import LocalProcess, local_process, stored_prompt, until_held
from support.recording import Frame, player
from support.stage_servers import (
    NIXL,
    OFFLOADING,
    engine,
    nixl_config,
    sglang_metrics,
    sidecar,
    vllm_metrics,
)

APART = {"uncachedTokens": 64}


def at(address: str, name: str, role: str | None, **more: Any) -> dict[str, Any]:
    labels = {} if role is None else {ROLE_LABEL: role}
    where: dict[str, Any] = {
        "address": address,
        "metrics": f"http://{address}/metrics",
        "events": "",
        "labels": labels,
    }
    return make_endpoint(name) | where | more


def written(name: str, role: str | None, **labels: str) -> dict[str, Any]:
    return make_endpoint(name, labels=({} if role is None else {ROLE_LABEL: role}) | labels)


def of_file(*endpoints: dict[str, Any], **sections: Any) -> Result:
    """Return the result of `stages-served` on a configuration alone."""
    deployment = Deployment(config=with_endpoints(*endpoints, **sections), wall=time.time())
    return next(each for each in examine(CHECKS, deployment) if each.check.name == "stages-served")


@asynccontextmanager
async def pair(prefill: str, decode: str, **info: Mapping[str, object]) -> AsyncGenerator[LocalProcess]:
    """Run a process with a prefill server that has one page, and a decode server behind a sidecar that has the other."""
    async with (
        engine(prefill, info.get("first")) as computing,
        engine(decode, info.get("second")) as taking,
        sidecar(taking) as door,
        local_process(
            at(computing, "p0", "prefill"), at(door, "d0", "decode"), disaggregation=APART
        ) as process,
    ):
        yield process


# -- stages-served ----------------------------------------------------------------------------------------------------


def test_nothing_is_said_of_stages_when_none_is_apart() -> None:
    result = of_file(written("a", None), written("b", None))
    assert (result.state.value, result.evidence) == (
        "ok",
        ("no stage of requests is on a server of its own",),
    )


@pytest.mark.parametrize(
    ("roles", "evidence"),
    [
        pytest.param(["decode", None], "no endpoint prefills (2 decode, 0 prefill, 0 encode, of 2)", id="no_prefill"),
        pytest.param(["prefill"], "no endpoint decodes (0 decode, 1 prefill, 0 encode, of 1)", id="no_decode"),
    ],
)  # fmt: skip
def test_missing_stage_fails_with_the_label_that_mends_it(roles: Sequence[str | None], evidence: str) -> None:
    endpoints = [written(f"e{number}", role) for number, role in enumerate(roles)]

    result = of_file(*endpoints, disaggregation=APART)

    assert (result.state.value, result.evidence) == ("fail", (f"the fleet: {evidence}",))
    assert result.remedies[0].startswith(f"label {ROLE_LABEL}: ")


def test_stages_are_counted_per_model_when_models_have_servers_of_their_own() -> None:
    models = [{"names": [name], "endpointLabels": {"pool": name}} for name in ("m1", "m2")]
    endpoints = [
        written("d1", "decode", pool="m1"),
        written("p1", "prefill", pool="m1"),
        written("d2", "decode", pool="m2"),
    ]

    result = of_file(*endpoints, models=models, disaggregation=APART)

    assert result.evidence == ("model m2: no endpoint prefills (1 decode, 0 prefill, 0 encode, of 1)",)


def test_prefill_servers_are_reported_when_no_stage_is_apart() -> None:
    result = of_file(written("d", "decode"), *(written(f"p{n}", "prefill") for n in range(5)))
    assert result.state.value == "warn"
    assert result.evidence == (
        "p0, p1, p2 and 2 more: role prefill, and the configuration has no stage apart",
    )
    assert result.remedies == ("disaggregation: {uncachedTokens: 512}, or no such label",)


def test_label_that_is_no_role_is_reported_with_all_roles() -> None:
    result = of_file(
        written("d", "decode"), written("p", "prefill"), written("x", "Decode"), disaggregation=APART
    )
    assert result.evidence == (f"x: label {ROLE_LABEL} is 'Decode', which is no role: no stage picks it",)
    assert "prefill-decode" in result.remedies[0]


def test_stages_of_profiles_count_as_those_of_the_short_form() -> None:
    plugins = [{"type": each} for each in ("disagg-profile-handler", "prefill-filter", "queue-scorer")]
    profiles = [
        {"name": "decode", "plugins": [{"pluginRef": "queue-scorer"}]},
        {"name": "computing", "plugins": [{"pluginRef": "prefill-filter"}, {"pluginRef": "queue-scorer"}]},
    ]
    result = of_file(written("a", None), plugins=plugins, schedulingProfiles=profiles)
    assert result.evidence == ("the fleet: no endpoint prefills (1 decode, 0 prefill, 0 encode, of 1)",)


async def test_prefill_server_fails_when_no_decode_server_has_its_model() -> None:
    async with pair(vllm_metrics(model="m1"), vllm_metrics(model="m2")) as process:
        found = await process.until_state("stages-served", "fail")
    assert found["evidence"] == ["p0: prefills m1, and no endpoint that decodes serves that, but m2"]
    assert "endpointLabels" in found["remedies"][0]


# -- stages-fit -------------------------------------------------------------------------------------------------------


async def test_pair_that_fits_has_no_finding() -> None:
    page = vllm_metrics(NIXL, nixl_config("abc"))
    async with pair(page, page) as process:
        checks = await process.checks()
    assert checks["stages-served"]["evidence"] == ["the fleet: 1 decode, 1 prefill, 0 encode"]
    assert checks["stages-fit"]["evidence"] == ["the fleet: 1 prefill and 1 decode servers fit"]
    assert {line.partition(" answers")[0] for line in checks["sidecars-answer"]["evidence"]} == {
        "p0: an engine",
        "d0: a sidecar",
    }
    assert checks["stages-fit"]["state"] == checks["sidecars-answer"]["state"] == "ok"


async def test_pair_fails_when_transfers_cannot_work() -> None:
    prefill = vllm_metrics(NIXL, nixl_config("abc", "kv_consumer"), cache_dtype="fp8")
    async with pair(prefill, vllm_metrics(OFFLOADING, nixl_config("xyz"))) as process:
        found = await process.until_state("stages-fit", "fail")
    assert found["evidence"] == [
        "type of KV values: fp8 on p0; auto on d0",
        "compatibility hash of NIXL: abc on p0; xyz on d0",
        "p0: runs as kv_consumer, and its role is prefill",
    ]
    assert found["remedies"][0] == "one --kv-cache-dtype for prefill and decode servers of a model"


async def test_connectors_fail_when_the_series_of_both_differ_and_are_unknown_when_there_are_none() -> None:
    async with pair(vllm_metrics(NIXL), vllm_metrics(OFFLOADING)) as process:
        differ = await process.until_state("stages-fit", "fail")
    async with pair(vllm_metrics(NIXL), vllm_metrics()) as process:
        one = await process.until_state("stages-fit", "warn")
    async with pair(vllm_metrics(), vllm_metrics()) as process:
        none = await process.until_state("stages-fit", "unknown")
    assert differ["evidence"] == ["no KV connector of both: p0: NIXL; d0: offloading"]
    assert one["evidence"] == ["KV connectors differ: p0: NIXL; d0: no series of a connector in /metrics"]
    assert none["evidence"][0].startswith("KV connectors cannot be compared: p0: no series")


async def test_block_sizes_and_hash_algorithms_that_differ_are_a_warning() -> None:
    prefill = vllm_metrics(NIXL, block_size="32", prefix_caching_hash_algo="sha256_cbor")
    async with pair(prefill, vllm_metrics(NIXL)) as process:
        found = await process.until_state("stages-fit", "warn")
    assert found["evidence"] == [
        "tokens per block: 32 on p0; 16 on d0",
        "algorithm of block hashes: sha256_cbor on p0; sha256 on d0",
    ]


async def test_sglang_tells_its_mode_and_backend() -> None:
    info: dict[str, Any] = {"page_size": 16, "kv_cache_dtype": "auto"}
    mooncake = info | {
        "disaggregation_mode": "prefill",
        "disaggregation_transfer_backend": "mooncake",
        "x": [1],
    }
    nixl = info | {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "nixl"}
    alone = info | {"disaggregation_mode": "null", "disaggregation_transfer_backend": "mooncake"}
    async with pair(sglang_metrics(), sglang_metrics(), first=mooncake, second=nixl) as process:
        differ = await process.until_state("stages-fit", "fail")
    async with pair(sglang_metrics(), sglang_metrics(), first=mooncake, second=alone) as process:
        mode = await process.until_state("stages-fit", "fail")
    assert differ["evidence"] == ["transfer backend: mooncake on p0; nixl on d0"]
    assert mode["evidence"] == ["d0: runs with disaggregation mode null, and its role is decode"]
    assert mode["remedies"] == ["sglang serve --disaggregation-mode decode"]


@pytest.mark.parametrize(("seed", "state"), [(0, "ok"), (0x5555, "warn")])
async def test_other_hash_seed_is_seen_when_both_hold_the_same_blocks(seed: int, state: str) -> None:
    page = vllm_metrics(NIXL)
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(player()) for _ in range(2)]
        computing, taking = [await stack.enter_async_context(engine(page)) for _ in range(2)]
        process = await stack.enter_async_context(
            local_process(
                at(computing, "p0", "prefill", events=first.events),
                at(taking, "d0", "decode", events=second.events),
                disaggregation=APART,
            )
        )
        await until_held(process, first, "p0")
        await until_held(process, second, "d0", frame=hashed_with(seed))
        found = (await process.checks())["stages-fit"]
    assert found["state"] == state
    if state == "warn":
        assert found["evidence"] == [
            "block hashes: of 4 blocks that d0 and p0 hold, none has the same hash on both"
        ]
        assert "PYTHONHASHSEED" in found["remedies"][0]


def hashed_with(seed: int) -> Frame:
    """Return the event of the stored prompt by an engine with this seed."""
    topic, number, payload = stored_prompt(0).parts
    stamp, (event,), rank = msgspec.msgpack.decode(payload)
    event["block_hashes"] = [each ^ seed for each in event["block_hashes"]]
    return Frame(0.0, "", (topic, number, msgspec.msgpack.encode([stamp, [event], rank])))


# -- sidecars-answer --------------------------------------------------------------------------------------------------


async def test_engine_where_a_sidecar_is_meant_fails_and_the_other_way_round_is_a_warning() -> None:
    page = vllm_metrics(NIXL)
    async with (
        engine(page) as one,
        engine(page) as other,
        sidecar(other) as door,
        local_process(at(one, "d0", "decode"), at(door, "p0", "prefill"), disaggregation=APART) as process,
    ):
        found = await process.until_state("sidecars-answer", "fail")
    assert found["evidence"] == [
        f"d0: an engine answers at http://{one}, so that it computes every prompt itself, whatever kvatlas names"
    ]
    async with (
        engine(page) as one,
        sidecar(one) as door,
        sidecar(one) as second,
        local_process(at(second, "d0", None), at(door, "p0", "prefill"), disaggregation=APART) as process,
    ):
        found = await process.until_state("sidecars-answer", "warn")
    assert found["evidence"] == [
        f"p0: a sidecar answers at http://{door}: prompts take one proxy more, whose /health is 200 without an engine too"
    ]


async def test_server_that_does_not_answer_is_unknown() -> None:
    async with local_process(
        written("d0", "decode"), written("p0", "prefill"), disaggregation=APART
    ) as process:
        checks = await process.checks()
    assert checks["sidecars-answer"]["state"] == "unknown"
    assert "d0: http://127.0.0.1:1: cannot connect" in checks["sidecars-answer"]["evidence"][0]


async def test_nobody_is_visited_when_no_stage_is_apart() -> None:
    async with (
        engine(vllm_metrics()) as address,
        local_process(at(address, "a", None, metrics="")) as process,
    ):
        checks = await process.checks()
    assert checks["sidecars-answer"]["evidence"] == ["no stage of requests is on a server of its own"]
    assert checks["stages-fit"]["state"] == "ok"
