"""An election over real HTTP; tests/unit/fleet/kubernetes/test_lease.py has its rules."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import pytest

from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.election import Elector
from kvatlas.fleet.kubernetes.client.lease import LeaseElection, Terms
from support.api_server import ApiServerDouble
from support.waiting import until

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
QUICK = Terms(lease_s=3, renew_s=2, retry_s=0.02)
"""Short, but longer than a busy machine stops a process."""


@dataclass
class Process:
    """A candidate of the election, and the states it reported."""

    elector: Elector
    tasks: list[asyncio.Task[None]]
    seen: list[bool] = field(default_factory=list[bool])

    async def stop(self) -> None:
        """Leave the election at once, without finishing the current step."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def standing(double: ApiServerDouble, identity: str) -> AsyncGenerator[Process]:
    server = ApiServer(Access(double.url), clock=time.monotonic)
    await server.start()
    elector = Elector(
        server,
        namespace="ns",
        name="kvatlas",
        election=LeaseElection("kvatlas", identity=identity, terms=QUICK, rng=lambda: 0.5),
        limit_s=1,
        on_change=lambda: process.seen.append(elector.leads),
        clock=time.monotonic,
        wall=time.time,
    )
    process = Process(elector, [asyncio.create_task(elector.run()), asyncio.create_task(elector.watch(0.02))])
    try:
        yield process
    finally:
        await process.stop()
        await elector.resign()
        await server.stop()


async def test_one_leads_and_the_other_follows_when_it_ends(double: ApiServerDouble) -> None:
    async with standing(double, "b") as other:
        async with standing(double, "a") as one:
            await until(lambda: one.elector.leads or other.elector.leads, what="a leader")
            leader, follower = (one, other) if one.elector.leads else (other, one)
            assert not follower.elector.leads
        await until(lambda: other.elector.leads, what="the other to lead")
        assert (leader.seen[0], other.elector.n_changes) == (True, 1)
    holder = double.objects(LEASES)["kvatlas"]["spec"]
    assert (holder["holderIdentity"], holder["leaseDurationSeconds"]) == ("", 1)


async def test_leader_follows_when_somebody_else_takes_the_lease(double: ApiServerDouble) -> None:
    async with standing(double, "a") as one:
        await until(lambda: one.elector.leads)
        taken = double.objects(LEASES)["kvatlas"]
        double.put(LEASES, "kvatlas", taken | {"spec": taken["spec"] | {"holderIdentity": "thief"}})
        await until(lambda: not one.elector.leads, what="the end of the lead")
        await until(lambda: one.elector.leads, what="a lead after the thief fell silent")


async def test_leader_goes_on_alone_when_the_api_server_is_away(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    async with standing(double, "a") as one, standing(double, "b") as other:
        await until(lambda: one.elector.leads or other.elector.leads, what="a leader")
        leader, follower = (one, other) if one.elector.leads else (other, one)
        await double.stop()
        await until(lambda: leader.elector.holds_on, what="the end of the renewed lead")
        assert (leader.elector.leads, follower.elector.leads) == (True, False)
        assert None not in (leader.elector.problem, follower.elector.problem)
        n_before = double.requests["update", LEASES]
        await double.start()
        await until(lambda: double.requests["update", LEASES] > n_before + 3, what="renewals")
        await until(lambda: follower.elector.problem is None, what="an answer to the follower")
        assert leader.elector.problem is None
        assert (leader.seen, follower.seen) == ([True], [])
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert (
        sum(message.endswith("; this process leads on until the API server answers") for message in warnings)
        == 1
    )


async def test_leader_goes_on_while_a_proxy_does_not_find_the_server(double: ApiServerDouble) -> None:
    async with standing(double, "a") as one, standing(double, "b") as other:
        await until(lambda: one.elector.leads or other.elector.leads, what="a leader")
        leader, follower = (one, other) if one.elector.leads else (other, one)
        double.faults.proxy = (404, "<html>default backend - 404</html>")
        await until(
            lambda: leader.elector.holds_on or not leader.elector.leads, what="the last renewal's end"
        )
        assert (leader.elector.leads, follower.elector.leads) == (True, False)
        double.heal()
        await until(lambda: leader.elector.problem is None and follower.elector.problem is None)
        assert (leader.seen, follower.seen) == ([True], [])


async def test_leader_goes_on_when_the_api_server_does_not_answer_and_ends_when_it_names_another(
    double: ApiServerDouble,
) -> None:
    async with standing(double, "a") as one:
        await until(lambda: one.elector.leads)
        double.faults.n_failing = 10**6
        await until(lambda: one.elector.holds_on, what="the end of the renewed lead")
        assert one.elector.leads
        taken = double.objects(LEASES)["kvatlas"]
        double.put(LEASES, "kvatlas", taken | {"spec": taken["spec"] | {"holderIdentity": "another"}})
        double.heal()
        await until(lambda: not one.elector.leads, what="the end of the lead")


async def test_lead_ends_in_time_when_the_lease_is_forbidden(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    async with standing(double, "a") as one:
        await until(lambda: one.elector.leads)
        double.faults.forbidden = {LEASES}
        await until(lambda: not one.elector.leads, what="the end of the lead")
        double.heal()
        await until(lambda: one.elector.leads, what="a new lead")
        double.faults.forbidden = {LEASES}
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition(":")[0] for message in warnings] == [
        "the Lease cannot be used",
        "the Lease could not be given up, others must wait until it expires",
    ]


@pytest.mark.parametrize("fault", ["forbidden", "nonsense"])
async def test_nobody_leads_when_the_lease_cannot_be_read(double: ApiServerDouble, fault: str) -> None:
    if fault == "forbidden":
        double.faults.forbidden = {LEASES}
    else:
        double.put(LEASES, "kvatlas", {"spec": {"leaseDurationSeconds": "many"}})
    async with standing(double, "a") as one:
        await until(lambda: double.requests["get", LEASES] > 3)
        assert not one.elector.leads
    assert ("create", LEASES) not in double.requests


async def test_lease_is_given_up_when_a_renewal_was_cut_short_after_it_was_written(
    double: ApiServerDouble,
) -> None:
    async with standing(double, "a") as one:
        await until(lambda: one.elector.leads)
        await one.stop()
        double.put(LEASES, "kvatlas", double.objects(LEASES)["kvatlas"])
        assert await one.elector.resign()
    assert double.objects(LEASES)["kvatlas"]["spec"]["holderIdentity"] == ""


async def test_lease_of_somebody_else_stays_when_it_changed_hands_unseen(double: ApiServerDouble) -> None:
    async with standing(double, "a") as one:
        await until(lambda: one.elector.leads)
        await one.stop()
        taken = double.objects(LEASES)["kvatlas"]
        double.put(LEASES, "kvatlas", taken | {"spec": taken["spec"] | {"holderIdentity": "thief"}})
        assert not await one.elector.resign()
    assert double.objects(LEASES)["kvatlas"]["spec"]["holderIdentity"] == "thief"
