"""Sequences of changes and outages that a cluster goes through, and what discovery knows after each step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from kvatlas.fleet.kubernetes.metrics import kubernetes_families
from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS
from support.discovering import FAST, Found, discovering, objective, pod, pool, rewrite
from support.waiting import until

GROUP = "llm-d.ai/v1alpha2"
OBJECTIVES = f"/apis/{GROUP}/namespaces/ns/inferenceobjectives"
REWRITES = f"/apis/{GROUP}/namespaces/ns/inferencemodelrewrites"
PATIENT = replace(FAST, max_delay_s=3600)
"""Fails as often in a row as a test lasts, and then waits too long for it."""


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    yield server
    await server.stop()


def put_all(double: ApiServerDouble) -> None:
    """A pool with a pod, an objective and a rewrite."""
    double.groups = {GROUP: ["inferenceobjectives", "inferencemodelrewrites"]}
    double.put(PODS, "p", pod(1))
    double.put(POOLS, "mine", pool())
    double.put(OBJECTIVES, "chat", objective(5))
    double.put(REWRITES, "r", rewrite("other"))


def metric(found: Found, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the values of their labels."""
    for family in kubernetes_families(found.discovery):
        if family.name == f"kvatlas_kubernetes_{name}":
            return {tuple(each.labels.values()): each.value for each in family.samples}
    raise AssertionError(f"there is no metric {name}")


# -- another selector -------------------------------------------------------------------------------------------------


def change_pool(double: ApiServerDouble) -> None:
    double.put(POOLS, "mine", pool("b", 8001))


def replace_pool(double: ApiServerDouble) -> None:
    double.delete(POOLS, "mine")
    double.put(POOLS, "mine", pool("b", 8001))


CHANGES = pytest.mark.parametrize("change", [change_pool, replace_pool], ids=["changed", "created_again"])


@CHANGES
async def test_old_endpoints_stay_until_the_new_pods_are_listed_when_the_selector_changes(
    double: ApiServerDouble, change: Callable[[ApiServerDouble], None]
) -> None:
    double.put(PODS, "p", pod(1))
    double.put(PODS, "q", pod(2, "b"))
    double.put(POOLS, "mine", pool())
    async with discovering(double) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 2)
        double.faults.slow_lists = {PODS}
        change(double)
        await until(lambda: double.requests["list", PODS] == 2)
        assert found.addresses() == ["10.0.0.1:8000"]
        double.heal()
        await until(lambda: found.addresses() == ["10.0.0.2:8001"])
        assert all(found.reports)


@CHANGES
async def test_old_endpoints_stay_when_the_selector_changes_and_new_connections_are_refused(
    double: ApiServerDouble, change: Callable[[ApiServerDouble], None]
) -> None:
    put_all(double)
    double.put(PODS, "q", pod(2, "b"))
    async with discovering(double) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 4)
        await double.refuse_connections()
        change(double)
        await until(lambda: found.discovery.pods.copy.n_failures["unreachable"] > 1)
        assert found.addresses() == ["10.0.0.1:8000"]
        assert found.discovery.has_pool
        assert metric(found, "current")["pods",] == 0
        await double.accept_connections()
        await until(lambda: found.addresses() == ["10.0.0.2:8001"])
        assert all(found.reports)


async def test_pods_of_the_old_selector_do_not_come_back_when_the_pool_does_with_another(
    double: ApiServerDouble,
) -> None:
    double.put(PODS, "p", pod(1))
    double.put(PODS, "q", pod(2, "b"))
    double.put(POOLS, "mine", pool())
    async with discovering(double) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 2)
        double.delete(POOLS, "mine")
        await until(lambda: found.reports[-1] == [])
        assert not found.discovery.has_pool
        double.put(POOLS, "mine", pool("b"))
        await until(lambda: found.reports[-1] == ["10.0.0.2:8000"])
        assert found.reports == [["10.0.0.1:8000"], [], ["10.0.0.2:8000"]]


# -- start ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [OBJECTIVES, REWRITES])
async def test_nothing_is_synced_before_all_that_decides_is_read(double: ApiServerDouble, slow: str) -> None:
    put_all(double)
    double.faults.slow_lists = {slow}
    async with discovering(double) as found:
        await until(lambda: double.requests["list", slow] and found.addresses())
        await until(lambda: found.discovery.awaited == slow.rpartition("/")[2])
        assert not found.discovery.synced
        double.heal()
        await until(lambda: found.discovery.synced)
        assert found.discovery.priorities == {"chat": 5}
        assert found.discovery.rewrites.target("m") == "other"
        assert found.discovery.awaited is None


@pytest.mark.parametrize("n_refused", [0, 1])
async def test_all_is_known_when_synced_after_a_start_without_an_api_server(
    double: ApiServerDouble, n_refused: int
) -> None:
    """The pauses would be too long for the test, if one kind waited on its own."""
    put_all(double)
    await double.stop()
    async with discovering(double, timing=PATIENT) as found:
        pools = found.discovery.pools
        assert pools is not None
        await until(lambda: pools.copy.n_failures["unreachable"] > 2)
        double.n_initializing = n_refused
        await double.start()
        await until(lambda: found.discovery.synced)
        assert found.addresses() == ["10.0.0.1:8000"]
        assert found.discovery.priorities == {"chat": 5}
        assert found.discovery.rewrites.target("m") == "other"


async def test_kinds_that_are_not_installed_are_named_once_and_not_waited_for(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.put(PODS, "p", pod(1))
    double.put(POOLS, "mine", pool())
    async with discovering(double) as found:
        await until(lambda: found.discovery.synced and double.n_discoveries > 8)
        lacking = metric(found, "lacking")
        assert lacking == {
            (kind, "not_installed"): 1 for kind in ("inferenceobjectives", "inferencemodelrewrites")
        }
        told = [each.message for each in caplog.records if each.levelname == "WARNING"]
        assert [each.partition(" ")[0] for each in sorted(told)] == [
            "inferencemodelrewrites", "inferenceobjectives"
        ]  # fmt: skip
        assert all("install" in each for each in told)
        double.put(OBJECTIVES, "chat", objective(5))
        double.groups = {GROUP: ["inferenceobjectives"]}
        await until(lambda: found.discovery.priorities == {"chat": 5})
        assert set(metric(found, "lacking")) == {("inferencemodelrewrites", "not_installed")}


@pytest.mark.parametrize("refused", [REWRITES, f"/apis/{GROUP}"], ids=["objects", "discovery"])
async def test_kind_without_a_right_is_named_once_and_not_waited_for(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    put_all(double)
    double.faults.forbidden = {refused}
    async with discovering(double) as found:
        await until(lambda: found.discovery.synced)
        assert metric(found, "lacking")["inferencemodelrewrites", "forbidden"] == 1
        assert found.discovery.rewrites.target("m") == ""
        told = [each.message for each in caplog.records if "inferencemodelrewrites" in each.message]
        assert len(told) == 1
        assert "Role" in told[0]
        double.heal()
        await until(lambda: found.discovery.rewrites.target("m") == "other")
        await until(lambda: metric(found, "lacking") == {})  # once the watch is open


async def test_pods_without_a_right_are_named_and_waited_for(double: ApiServerDouble) -> None:
    put_all(double)
    double.faults.forbidden = {PODS}
    async with discovering(double) as found:
        await until(lambda: found.discovery.pods.copy.n_failures["http_status"] > 1)
        assert metric(found, "lacking") == {("pods", "forbidden"): 1}
        assert (found.discovery.synced, found.discovery.awaited) == (False, "pods")


# -- silence and outages ----------------------------------------------------------------------------------------------


async def test_deleted_pod_goes_when_existing_connections_stall_and_new_ones_work(
    double: ApiServerDouble,
) -> None:
    put_all(double)
    quick = replace(FAST, watch_s=1, slack_s=-0.9)
    async with discovering(double, timing=quick) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 4)
        double.stall_connections()
        double.delete(PODS, "p")
        await until(lambda: found.reports[-1] == [])
        assert found.discovery.pods.copy.n_failures["timeout"] > 0


async def test_all_kinds_are_known_again_when_the_first_one_is(double: ApiServerDouble) -> None:
    """Only the request of another part shows that the server is back; the pauses are too long for the test."""
    put_all(double)
    timing = replace(FAST, first_delay_s=3600, away_delay_s=3600)
    async with discovering(double, timing=timing) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 4)
        double.break_watches("reset")
        await until(lambda: double.n_watches == 0)
        double.put(PODS, "q", pod(2))
        await found.server.get(PODS, {})
        await until(lambda: double.n_watches == 4)
        assert len(found.addresses()) == 2
        assert set(metric(found, "current").values()) == {1}


@pytest.mark.parametrize("text", ["<html>default backend - 404</html>", "404 page not found\n"])
async def test_endpoints_stay_while_a_proxy_does_not_find_the_server(
    double: ApiServerDouble, text: str
) -> None:
    """However long it says 404, which of the API server would mean that the kinds are not served any more."""
    put_all(double)
    async with discovering(double, timing=replace(FAST, missing_s=0.0, gone_s=0.0)) as found:
        await until(lambda: found.discovery.synced and double.n_watches == 4)
        double.faults.proxy = (404, text)
        double.break_watches("reset")
        copies = [follower.copy for _, follower in found.discovery.followers()]
        await until(lambda: all(copy.n_failures["http_status"] > 9 for copy in copies))
        assert found.addresses() == ["10.0.0.1:8000"]
        assert found.discovery.priorities == {"chat": 5}
