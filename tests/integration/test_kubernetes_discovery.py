"""Discovery with a real HTTP API server; test_list_watch_machine.py covers faults."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvatlas.configs.cluster import KubernetesConfig
from kvatlas.configs.schema import EventsConfig
from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.backoff import Timing
from kvatlas.fleet.kubernetes.discovery import Discovery, namespace_of
from kvatlas.fleet.roster import Wanted
from support.api_server import ApiServerDouble
from support.waiting import until

PODS = "/api/v1/namespaces/ns/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
OLD_POOLS = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/ns/inferencepools"
FAST = Timing(first_delay_s=0.005, max_delay_s=0.02, healthy_s=0.1, short_watch_s=0.001)


@dataclass
class Found:
    """Discovery and its reports."""

    discovery: Discovery
    reports: list[Mapping[str, Wanted]] = field(default_factory=list[Mapping[str, Wanted]])

    def addresses(self) -> list[str]:
        return (
            sorted(str(each.addresses.serving) for each in self.reports[-1].values()) if self.reports else []
        )


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def discovering(double: ApiServerDouble, config: KubernetesConfig) -> AsyncGenerator[Found]:
    server = ApiServer(Access(double.url), clock=time.monotonic)
    await server.start()
    reports: list[Mapping[str, Wanted]] = []

    def take(changes: Mapping[str, Wanted | None]) -> None:
        after = {**(reports[-1] if reports else {}), **changes}
        reports.append({name: each for name, each in after.items() if each is not None})

    discovery = Discovery(
        config,
        EventsConfig(),
        server=server,
        namespace="ns",
        on_endpoints=take,
        timing=FAST,
        clock=time.monotonic,
        rng=lambda: 0.5,
    )
    task = asyncio.create_task(discovery.run())
    try:
        yield Found(discovery, reports)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await server.stop()


def pod(number: int, app: str = "a", *, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": app}, "annotations": annotations or {}},
        "status": {"podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pool(app: str = "a", *ports: int) -> dict[str, Any]:
    targets = [{"number": port} for port in ports or (8000,)]
    return {"spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": targets}}


async def test_only_the_needed_kinds_are_requested_when_there_is_a_pool(double: ApiServerDouble) -> None:
    double.put(PODS, "p", pod(1))
    double.put(POOLS, "mine", pool())
    double.put(POOLS, "other", pool("b"))
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 2)
        assert found.addresses() == ["10.0.0.1:8000"]
    assert set(double.requests) == {(verb, path) for verb in ("list", "watch") for path in (PODS, POOLS)}
    selectors = {(q.get("labelSelector"), q.get("fieldSelector")) for q in double.queries}
    assert selectors == {(None, "metadata.name=mine"), ("app=a", None)}


async def test_endpoints_follow_the_pool_when_it_changes(double: ApiServerDouble) -> None:
    double.put(PODS, "p", pod(1))
    double.put(PODS, "q", pod(2, "b"))
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: double.requests["watch", POOLS])
        assert not found.discovery.has_pool
        double.put(POOLS, "mine", pool())
        await until(lambda: found.addresses() == ["10.0.0.1:8000"])
        double.put(POOLS, "mine", pool("a", 8000, 8001))
        await until(lambda: found.addresses() == ["10.0.0.1:8000", "10.0.0.1:8001"])
        double.put(POOLS, "mine", pool("a", 8001, 8000))
        await until(lambda: str(found.reports[-1]["p-rank-0"].addresses.serving) == "10.0.0.1:8001")
        double.put(POOLS, "mine", pool("b"))
        await until(lambda: found.addresses() == ["10.0.0.2:8000"])
        double.delete(POOLS, "mine")
        await until(lambda: not found.addresses() and not found.discovery.has_pool)
        assert found.reports[-1] == {}


async def test_endpoints_are_the_old_pools_when_its_group_is_configured(double: ApiServerDouble) -> None:
    double.put(PODS, "p", pod(1))
    double.put(
        OLD_POOLS,
        "mine",
        {"spec": {"selector": {"app": "a"}, "targetPortNumber": 9000, "extensionRef": {"name": "epp"}}},
    )
    config = KubernetesConfig(inference_pool="mine", pool_group="inference.networking.x-k8s.io")
    async with discovering(double, config) as found:
        await until(lambda: found.addresses() == ["10.0.0.1:9000"])


async def test_only_pods_are_requested_when_a_selector_replaces_the_pool(double: ApiServerDouble) -> None:
    double.put(PODS, "p", pod(1))
    double.put(PODS, "q", pod(2, "b"))
    config = KubernetesConfig(endpoint_selector="app=a", target_ports=(8000, 8001))
    async with discovering(double, config) as found:
        await until(lambda: found.addresses() == ["10.0.0.1:8000", "10.0.0.1:8001"])
        assert found.discovery.synced
        assert [kind for kind, _ in found.discovery.followers()] == ["pods"]
    assert {path for _, path in double.requests} == {PODS}


async def test_pod_is_another_when_it_is_made_again_with_the_same_name_and_address(
    double: ApiServerDouble,
) -> None:
    double.put(PODS, "p", pod(1))
    double.put(POOLS, "mine", pool())
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: found.addresses() == ["10.0.0.1:8000"])
        first = found.reports[-1]["p-rank-0"]
        double.delete(PODS, "p")
        double.put(PODS, "p", pod(1))
        await until(lambda: found.reports[-1] and found.reports[-1]["p-rank-0"].uid != first.uid)
        assert found.reports[-1]["p-rank-0"].addresses == first.addresses


async def test_event_addresses_move_when_the_configuration_changes(
    double: ApiServerDouble,
) -> None:
    double.put(PODS, "p", pod(1))
    double.put(POOLS, "mine", pool())
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: found.addresses() == ["10.0.0.1:8000"])
        found.discovery.configure(EventsConfig(port=6000))
        assert found.reports[-1]["p-rank-0"].addresses.ranks[0].events == "tcp://10.0.0.1:6000"


async def test_pod_with_wrong_annotations_is_logged_once_when_it_changes(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    nonsense = pod(1, annotations={"kvatlas.io/events-port": "x"})
    double.put(PODS, "p", nonsense)
    double.put(POOLS, "mine", pool())
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: found.addresses() == ["10.0.0.1:8000"])
        double.put(PODS, "p", nonsense)
        double.put(PODS, "q", pod(2))
        await until(lambda: len(found.addresses()) == 2)
    warnings = [record.message for record in caplog.records if "kvatlas.io/events-port" in record.message]
    assert len(warnings) == 1
    assert warnings[0].startswith("pod p: kvatlas.io/events-port is 'x', want one port")
    assert warnings[0].endswith("its endpoints have no KV events until that is fixed")


NEW_OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/ns/inferenceobjectives"
OLD_OBJECTIVES = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/ns/inferenceobjectives"


TO_OTHER = [{"matches": [{"model": {"type": "Exact", "value": "m"}}], "targets": [{"modelRewrite": "other"}]}]


def objective(priority: int | None, pool: str = "mine", **reference: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"poolRef": {"name": pool} | reference}
    return {"spec": spec if priority is None else spec | {"priority": priority}}


@pytest.mark.parametrize(
    ("groups", "path"),
    [
        pytest.param(["llm-d.ai/v1alpha2"], NEW_OBJECTIVES, id="new"),
        pytest.param(["inference.networking.x-k8s.io/v1alpha2"], OLD_OBJECTIVES, id="old"),
        pytest.param(
            ["inference.networking.x-k8s.io/v1alpha2", "llm-d.ai/v1alpha2"], NEW_OBJECTIVES, id="both"
        ),
    ],
)
async def test_priorities_are_the_objectives_of_the_pool_when_the_cluster_has_that_kind(
    double: ApiServerDouble, groups: list[str], path: str
) -> None:
    double.groups = {group: ["inferenceobjectives"] for group in groups}
    for other in (NEW_OBJECTIVES, OLD_OBJECTIVES):
        double.put(other, "chat", objective(5 if other == path else 7))
    double.put(path, "batch", objective(-1))
    double.put(path, "plain", objective(None))
    double.put(path, "by_the_default_of_a_crd", objective(3, group="llm-d.ai"))
    double.put(path, "foreign", objective(9, "other"))
    double.put(path, "old_pool", objective(9, group="inference.networking.x-k8s.io"))
    ending = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    double.put(path, "ending", objective(9) | ending)
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        priorities = priorities_of(found)
        others = {"chat": 5, "plain": 0, "by_the_default_of_a_crd": 3}
        await until(lambda: priorities == others | {"batch": -1})
        assert "inferenceobjectives" in [kind for kind, _ in found.discovery.followers()]
        double.delete(path, "batch")
        await until(lambda: priorities == others)


async def test_objective_may_name_several_pools_or_select_them_by_labels(double: ApiServerDouble) -> None:
    double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives"]}
    by_expression = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]}
    specs: dict[str, dict[str, Any]] = {
        "several": {"poolRefs": [{"name": "other"}, {"name": "mine"}]},
        "foreign": {"poolRefs": [{"name": "other"}]},
        "every": {"poolSelector": {}},
        "gold": {"poolSelector": {"matchLabels": {"tier": "gold"}}},
        "silver": {"poolSelector": {"matchLabels": {"tier": "silver"}}},
        "both": {"poolRef": {"name": "other"}, "poolSelector": by_expression},
        "none": {},
    }
    for name, spec in specs.items():
        double.put(NEW_OBJECTIVES, name, {"spec": spec | {"priority": 1}})
    labelled = pool() | {"metadata": {"labels": {"tier": "gold"}}}
    double.put(POOLS, "mine", labelled)
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        priorities = priorities_of(found)
        await until(lambda: set(priorities) == {"several", "every", "gold", "both"})
        double.put(POOLS, "mine", labelled | {"metadata": {"labels": {"tier": "silver"}}})
        await until(lambda: set(priorities) == {"several", "every", "silver", "both"})


@pytest.mark.parametrize(
    "others", [{}, {"llm-d.ai/v1alpha2": ["inferencepools"]}], ids=["no_group", "no_kind"]
)
async def test_priorities_come_when_the_kind_is_installed_later(
    double: ApiServerDouble, others: dict[str, list[str]]
) -> None:
    double.groups = others
    double.put(NEW_OBJECTIVES, "chat", objective(5))
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: double.n_discoveries > 3)
        assert NEW_OBJECTIVES not in {path for _, path in double.requests}
        double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives"]}
        await until(lambda: priorities_of(found) == {"chat": 5})


async def test_each_kind_is_taken_from_the_group_that_has_it(double: ApiServerDouble) -> None:
    rewrites = OLD_OBJECTIVES.replace("inferenceobjectives", "inferencemodelrewrites")
    double.groups = {
        "llm-d.ai/v1alpha2": ["inferenceobjectives"],
        "inference.networking.x-k8s.io/v1alpha2": ["inferenceobjectives", "inferencemodelrewrites"],
    }
    double.put(NEW_OBJECTIVES, "chat", objective(5))
    double.put(OLD_OBJECTIVES, "chat", objective(7))
    double.put(rewrites, "r", {"spec": {"poolRef": {"name": "mine"}, "rules": TO_OTHER}})
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: priorities_of(found) == {"chat": 5})
        await until(lambda: found.discovery.rewrites.target("m") == "other")


async def test_priorities_and_rewrites_are_there_when_the_pool_comes_back(double: ApiServerDouble) -> None:
    rewrites = NEW_OBJECTIVES.replace("inferenceobjectives", "inferencemodelrewrites")
    double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives", "inferencemodelrewrites"]}
    double.put(NEW_OBJECTIVES, "chat", objective(5))
    double.put(rewrites, "r", {"spec": {"poolRef": {"name": "mine"}, "rules": TO_OTHER}})
    double.put(POOLS, "mine", pool())
    double.put(PODS, "p", pod(1))
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: found.addresses() and priorities_of(found) and found.discovery.rewrites.has_rules)
        ending = pool() | {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        double.put(POOLS, "mine", ending)
        await until(lambda: not found.discovery.has_pool)
        double.delete(POOLS, "mine")
        double.put(POOLS, "mine", pool())
        await until(found.addresses)
        assert priorities_of(found) == {"chat": 5}
        assert found.discovery.rewrites.target("m") == "other"


async def test_pods_are_found_when_the_account_may_read_nothing_else_about_the_pool(
    double: ApiServerDouble,
) -> None:
    """Follow a pool with rights on pods and pools alone, as the conformance tests deploy a picker."""
    double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives", "inferencemodelrewrites"]}
    double.faults.forbidden = {
        NEW_OBJECTIVES, NEW_OBJECTIVES.replace("inferenceobjectives", "inferencemodelrewrites")
    }  # fmt: skip
    double.put(POOLS, "mine", pool())
    double.put(PODS, "p", pod(1))
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: double.requests["list", NEW_OBJECTIVES] > 1)
        assert found.addresses() == ["10.0.0.1:8000"]
        assert found.discovery.synced
        double.put(PODS, "q", pod(2))
        await until(lambda: found.addresses() == ["10.0.0.1:8000", "10.0.0.2:8000"])


async def test_older_kind_is_not_used_when_the_server_does_not_list_the_newer(
    double: ApiServerDouble,
) -> None:
    double.groups = {"inference.networking.x-k8s.io/v1alpha2": ["inferenceobjectives"]}
    double.odd_groups = {"llm-d.ai/v1alpha2"}
    async with discovering(double, KubernetesConfig(inference_pool="mine")):
        await until(lambda: double.n_discoveries > 3)
        assert OLD_OBJECTIVES not in {path for _, path in double.requests}


async def test_models_become_others_as_the_rewrites_of_the_pool_say(double: ApiServerDouble) -> None:
    path = "/apis/llm-d.ai/v1alpha2/namespaces/ns/inferencemodelrewrites"
    double.groups = {"llm-d.ai/v1alpha2": ["inferencemodelrewrites"]}

    def rewrite(target: str, pool: str = "mine") -> dict[str, Any]:
        rule = {
            "matches": [{"model": {"type": "Exact", "value": "m"}}],
            "targets": [{"modelRewrite": target}],
        }
        return {"spec": {"poolRef": {"name": pool}, "rules": [rule]}}

    double.put(path, "r", rewrite("other"))
    double.put(path, "foreign", rewrite("wrong", "theirs"))
    async with discovering(double, KubernetesConfig(inference_pool="mine")) as found:
        await until(lambda: found.discovery.rewrites.target("m") == "other")
        double.delete(path, "r")
        await until(lambda: not found.discovery.rewrites.has_rules)


def priorities_of(found: Found) -> Mapping[str, int]:
    return found.discovery.priorities


@pytest.mark.parametrize(
    ("configured", "environment", "own", "namespace"),
    [
        pytest.param("a", {"NAMESPACE": "b"}, "c", "a", id="configured"),
        pytest.param("", {"NAMESPACE": "b"}, "c", "b", id="variable"),
        pytest.param("", {}, "c", "c", id="own"),
        pytest.param("", {"NAMESPACE": ""}, None, "default", id="none"),
    ],
)
def test_namespace_is_the_first_named(
    configured: str, environment: dict[str, str], own: str | None, namespace: str
) -> None:
    assert namespace_of(KubernetesConfig(namespace=configured), environment, own) == namespace
