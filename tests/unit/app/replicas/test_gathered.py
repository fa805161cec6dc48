"""Decisions and audit of all replicas, and resets on all, from whichever of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from kvatlas.api.rest.answers import OwnAnswers, PageQuery
from kvatlas.api.rest.decisions import decision_routes
from kvatlas.api.rest.errors import UnavailableError
from kvatlas.app.replicas.gathered import Gathered
from kvatlas.app.replicas.requests import LETTERS, Requests
from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.routing.decision_log import DecisionLog
from support.decisions import decided
from support.fleets import make_endpoint, make_fleet, with_endpoints
from support.linked_replicas import LinkedReplicas
from support.waiting import until

ENDPOINTS = with_endpoints(make_endpoint("a", 1, events=""), make_endpoint("b", 2, events=""))


@dataclass
class One:
    """One replica, with the parts of a process that it needs."""

    log: DecisionLog
    fleet: Fleet
    answers: Gathered


@asynccontextmanager
async def three() -> AsyncGenerator[tuple[LinkedReplicas, list[One]]]:
    """Run workers `p.0`, `p.1` and `p.2` of a pod, which hear each other and expect each other."""
    names = ["p.0", "p.1", "p.2"]
    async with LinkedReplicas(silent_ms=5000) as network, AsyncExitStack() as stack:
        made: list[One] = []
        for number, name in enumerate(names):
            linked = network.add(name)

            def post(to: str, payload: bytes, *, name: str = name) -> None:
                network.replicas[name].post(LETTERS, to, payload)

            requests = Requests(linked.living, post, expected=[each for each in names if each != name])
            linked.letters[LETTERS] = requests
            fleet = await stack.enter_async_context(make_fleet())
            for endpoint, wanted in wanted_endpoints(ENDPOINTS).items():
                fleet.add(endpoint, wanted.addresses, wanted.labels)
            log = DecisionLog(max_count=10, max_bytes=2**20, worker=number)
            # the configuration is not asked for
            own = OwnAnswers(log, fleet, None)  # type: ignore[arg-type]
            made.append(One(log, fleet, Gathered(own, requests)))
            linked.start()
        await until(lambda: all(len(each.living()) == 2 for each in network.replicas.values()))
        yield network, made


async def leave(network: LinkedReplicas, name: str) -> None:
    """Have a replica take leave, and wait until the others have heard it."""
    gone = network.replicas.pop(name)
    assert gone.core is not None
    gone.send(gone.core.leave())
    await until(lambda: all(gone.id not in each.living() for each in network.replicas.values()))


@pytest.mark.parametrize(("cursor", "status"), [(2**63 - 1, 200), (2**63, 422), (2**64, 422)])
async def test_cursor_is_a_number_that_replicas_take(cursor: int, status: int) -> None:
    async with three() as (_, (asker, *_)):
        app = FastAPI()
        app.include_router(decision_routes(asker.answers))  # type: ignore[arg-type] # one of its answers alone
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            answer = await client.get("/v1/decisions", params={"cursor": cursor})

    assert answer.status_code == status


async def test_decisions_are_those_of_all() -> None:
    decision = decided([[1.0], [0.5]], [1])
    async with three() as (network, all_):
        for number in range(7):
            all_[number % 3].log.add(decision, request_id=f"r{number}", at=1000.0 + number)
        all_[0].log.add(decision, request_id="r1", at=2000.0)
        asker = all_[1].answers

        listed: list[str] = []
        cursor: int | None = None
        while True:
            page = await asker.decisions(PageQuery(3, None, cursor))
            listed += [each.request_id for each in page.decisions]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert listed == ["r1", "r6", "r5", "r4", "r3", "r2", "r1", "r0"]
        assert (await asker.decisions(PageQuery(3, "e1"))).decisions == []
        newest = await asker.decision("r1")
        assert newest is not None
        assert newest.at == 2000.0
        assert await asker.decision("r9") is None

        await leave(network, "p.0")
        page = await asker.decisions(PageQuery(3))
        assert [each.request_id for each in page.decisions] == ["r5", "r4", "r2"]
        assert page.missing_replicas == ["p.0"]
        with pytest.raises(UnavailableError, match=r"keeps it, and p\.0 did not answer"):
            await asker.decision("r9")


async def test_audit_is_the_sum_over_all() -> None:
    async with three() as (network, all_):
        for number, reused in ((0, 100), (2, 30)):
            verdict = Verdict.EVICTED if reused < 100 else Verdict.GOOD
            all_[number].fleet.audit.add(Audited("a", verdict, None, {"gpu": 100}, {"gpu": reused}), now=0.0)
        (row,) = (await all_[1].answers.audit()).endpoints
        assert (row.name, row.requests, row.verdicts["good"], row.verdicts["evicted"]) == ("a", 2, 1, 1)
        assert (row.expected_tokens, row.reused_tokens, row.over_tokens) == ({"gpu": 200}, {"gpu": 130}, 70)

        await leave(network, "p.2")
        audit = await all_[1].answers.audit()
        assert ([each.requests for each in audit.endpoints], audit.missing_replicas) == ([1], ["p.2"])


async def test_endpoint_is_forgotten_by_all_that_live_and_have_it() -> None:
    async with three() as (network, all_):

        def forgot() -> list[bool]:
            found = [each.fleet.get("a") for each in all_]
            return [each is not None and each.ranks[0].reset_at > 0 for each in found]

        await all_[0].fleet.remove("a")
        assert forgot() == [False, False, False]
        found = await all_[1].answers.reset("a")
        assert (found.endpoint, found.forgotten, found.missing_replicas) == ("a", 0, [])
        assert forgot() == [False, True, True]

        await leave(network, "p.2")
        assert (await all_[1].answers.reset("a")).missing_replicas == ["p.2"]
