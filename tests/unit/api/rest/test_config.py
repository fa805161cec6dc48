"""`/v1/config` and `/v1/weights`, without a running process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from kvatlas.api.rest.answers import OwnAnswers
from kvatlas.api.rest.capacities import capacities_routes
from kvatlas.api.rest.config import config_routes
from kvatlas.api.rest.errors import install_error_handlers
from kvatlas.api.rest.policy import policy_routes
from kvatlas.api.rest.weights import weight_routes
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.routing.plan.live import LiveConfig
from kvatlas.routing.plan.metrics import ConfigMetrics
from kvatlas.routing.plan.plan import Plan
from kvatlas.scorers.core.model import RequestView
from support.candidates import endpoint, load, no_chance
from support.fleets import make_endpoint, make_fleet, with_endpoints
from support.rating import decide


@dataclass
class Rest:
    """The routes, and the configurations they put in force."""

    client: httpx.AsyncClient
    live: LiveConfig
    log: DecisionLog
    switched: list[KVAtlasConfig] = field(default_factory=list[KVAtlasConfig])
    refusal: str | None = None

    async def put(self, body: Any) -> tuple[int, Any]:
        answer = await self.client.put("/v1/weights", json=body)
        return answer.status_code, answer.json()

    async def preview(self, body: Any) -> tuple[int, Any]:
        answer = await self.client.post("/v1/weights/preview", json=body)
        return answer.status_code, answer.json()


@pytest.fixture
async def rest() -> AsyncGenerator[Rest]:
    def switch(plan: Plan, _generation: int) -> None:
        if one.refusal is not None:
            raise ConfigRefusedError(one.refusal)
        one.switched.append(plan.config)

    async def settle() -> None:
        pass

    config = with_endpoints(make_endpoint("a", metrics="http://me:secret@h:1/m"))
    live = LiveConfig(config, switch=switch, settle=settle, metrics=ConfigMetrics(CollectorRegistry()))
    app = FastAPI()
    install_error_handlers(app)
    app.include_router(config_routes(live))
    log = DecisionLog(max_count=100, max_bytes=10**7)
    async with make_fleet() as fleet:
        own = OwnAnswers(log, fleet, live)
    app.include_router(weight_routes(live, log, own))
    app.include_router(policy_routes(live, own))
    app.include_router(capacities_routes(live, own))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        one = Rest(client, live, log)
        yield one


async def test_configuration_in_force_is_shown_without_secrets(rest: Rest) -> None:
    rest.live.refusals["/etc/x.yaml"] = "no such file"

    answer = (await rest.client.get("/v1/config")).json()

    assert (answer["generation"], answer["files"]) == (1, [])
    assert answer["refused"] == {"/etc/x.yaml": "no such file"}
    assert answer["config"]["weights"] == {
        "queue": 2,
        "kvCacheUtilization": 2,
        "gpuPrefixCache": 1,
        "cpuPrefixCache": 1,
    }
    assert answer["config"]["metricsScrape"]["interval"] == "50ms"
    assert answer["config"]["endpoints"]["static"][0]["metrics"] == "http://***@h:1/m"


async def test_weights_named_are_changed(rest: Rest) -> None:
    assert await rest.put({"queue": 3, "cpuPrefixCache": 0.5}) == (
        200,
        {
            "generation": 2,
            "changes": ["weights.queue: 2 -> 3", "weights.cpuPrefixCache: 1 -> 0.5"],
            "weights": {"queue": 3, "kvCacheUtilization": 2, "gpuPrefixCache": 1, "cpuPrefixCache": 0.5},
            "replicas": [],
        },
    )
    assert rest.switched == [rest.live.in_force]
    assert (await rest.client.get("/v1/config")).json()["generation"] == 2


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        pytest.param({"queu": 1}, 400, "weights: queu: unknown key; did you mean 'queue'?", id="name"),
        pytest.param(
            {"queue": -1}, 400, "weights: queue: found -1, expected a number from 0 to 1000000000", id="value"
        ),
        pytest.param(
            {"queue": 1.7e308, "kvCacheUtilization": 1.7e308},
            400,
            "weights: 2 problems\n  queue: found 1.7e+308, expected a number from 0 to 1000000000",
            id="totals_would_overflow",
        ),
        pytest.param([1], 422, "body: Input should be a valid dictionary", id="list"),
    ],
)
async def test_impossible_weights_are_named_and_change_nothing(
    rest: Rest, body: Any, status: int, message: str
) -> None:
    found, answer = await rest.put(body)

    assert found == status
    assert answer["error"]["message"].startswith(message)
    assert (rest.live.generation, rest.switched) == (1, [])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(
            b"{", "not JSON: Expecting property name enclosed in double quotes (character 1)", id="cut_off"
        ),
        pytest.param(b'{"queue" 1}', "not JSON: Expecting ':' delimiter (character 9)", id="colon"),
        pytest.param(b'{"queue":"\xff"}', "not UTF-8: invalid start byte (byte 10)", id="not_utf_8"),
        pytest.param(b"[" * 5000 + b"]" * 5000, "not JSON that can be read: nested too deeply", id="nested"),
    ],
)
async def test_body_that_is_no_json_is_refused_with_the_reason(rest: Rest, body: bytes, problem: str) -> None:
    answer = await rest.client.put("/v1/weights", content=body, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.json()["error"]) == (
        422,
        {
            "code": "UnprocessableEntity",
            "message": f"body: {problem}",
            "detail": [{"field": "body", "problem": problem}],
        },
    )


async def test_weights_that_cannot_be_put_in_force_are_a_conflict(rest: Rest) -> None:
    rest.refusal = "something is in the way"

    status, answer = await rest.put({"queue": 3})

    assert (status, answer["error"]["message"]) == (409, "PUT /v1/weights: something is in the way")


async def test_weights_in_force_are_shown_under_the_names_that_change_them(rest: Rest) -> None:
    await rest.put({"queue": 3})

    answer = (await rest.client.get("/v1/weights")).json()

    assert answer["generation"] == 2
    assert [(each["name"], each["scorer"], each["weight"]) for each in answer["weights"]] == [
        ("queue", "queue-scorer", 3),
        ("kvCacheUtilization", "kv-cache-utilization-scorer", 2),
        ("gpuPrefixCache", "gpu-prefix-cache-scorer", 1),
        ("cpuPrefixCache", "cpu-prefix-cache-scorer", 1),
    ]


async def test_preview_reports_changed_decisions_and_changes_nothing(rest: Rest) -> None:
    fleet = [endpoint("e0", of=load(waiting=0, kv=0.5)), endpoint("e1", of=load(waiting=1, kv=0.0))]
    decision = decide(rest.live.plan.profile, RequestView(model="m", now=0.0), fleet, rng=no_chance)
    assert decision.picked == ("e0",), "2 for the queue and 1 for half a cache, against 2"
    rest.log.add(decision, request_id="r", at=0.0)

    same, other = await rest.preview({}), await rest.preview({"queue": 0.5})

    assert (same[0], same[1]["decisions"], same[1]["changed"], same[1]["moved"]) == (200, 1, 0, [])
    assert other[1]["endpoints"] == [
        {"name": "e0", "before": 1, "after": 0.0},
        {"name": "e1", "before": 0, "after": 1.0},
    ]
    (moved,) = other[1]["moved"]
    assert (moved["decision"]["requestId"], moved["leaders"]) == ("r", ["e1"])
    assert (rest.live.generation, rest.switched) == (1, [])


async def test_preview_of_impossible_weights_names_them(rest: Rest) -> None:
    status, answer = await rest.preview({"queu": 1})

    assert (status, answer["error"]["message"]) == (
        400,
        "weights: queu: unknown key; did you mean 'queue'? allowed: queue, kvCacheUtilization, gpuPrefixCache, cpuPrefixCache",
    )


async def test_policy_changes_at_once_and_back(rest: Rest) -> None:
    before = (await rest.client.get("/v1/policy")).json()
    answer = await rest.client.put("/v1/policy", json={"policy": "latency"})
    after = (await rest.client.get("/v1/policy")).json()
    shown = (await rest.client.get("/v1/config")).json()["config"]
    weights = await rest.put({"queue": 3})

    assert before == {"generation": 1, "policy": "weights", "costs": []}
    assert answer.status_code == 200
    assert answer.json()["changes"][0] == "policy: 'weights' -> 'latency'"
    (costs,) = after.pop("costs")
    assert after == {"generation": 2, "policy": "latency"}
    assert (costs["scorer"], costs["state"], costs["observations"]) == ("fleet-cost-scorer", "few", 0)
    assert "Until then the configured ones (15,928 prompt tokens/s) are in force." in costs["says"]
    assert (shown["policy"], shown.keys() & {"weights", "plugins"}) == ("latency", set())
    assert [name for name, _, _ in rest.live.plan.profile.scorers] == ["fleet-cost-scorer"]
    assert weights[0] == 400
    assert "policy 'latency' has no weights" in weights[1]["error"]["message"]

    back = (await rest.client.put("/v1/policy", json={"policy": "weights"})).json()

    assert back["generation"] == 3
    assert rest.live.in_force == rest.live.loaded


async def test_unknown_policy_is_refused(rest: Rest) -> None:
    answer = await rest.client.put("/v1/policy", json={"policy": "latncy"})

    assert answer.status_code == 422
    assert "'weights' or 'latency'" in answer.json()["error"]["message"]
    assert rest.live.generation == 1


async def test_capacities_are_shown_and_those_named_are_changed(rest: Rest) -> None:
    answer = await rest.client.put("/v1/capacities", json={"cpu": 41000})
    assert (answer.status_code, answer.json()) == (
        200,
        {"generation": 2, "changes": ["tiers[cpu].lruCapacityPerServer: 'auto' -> 41000"], "replicas": []},
    )
    shown = (await rest.client.get("/v1/capacities")).json()
    assert shown == {"generation": 2, "capacities": {"gpu": "auto", "cpu": 41000, "storage": "auto"}}

    for body, message in (
        ({"cpus": 1}, "capacities: cpus: no tier of that name; did you mean 'cpu'?"),
        ({"cpu": 0}, "capacities: cpu: found 0, expected"),
        ({"cpu": "all"}, "capacities: cpu: found 'all', expected"),
    ):
        refused = await rest.client.put("/v1/capacities", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(message)
    assert rest.live.generation == 2
