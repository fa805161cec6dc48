"""What REST and the doctor say about other replicas."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter

from kvatlas.api.doctor.check import Result, examine
from kvatlas.api.doctor.deployment import Counts, Deployment
from kvatlas.api.doctor.replicas import CHECKS
from kvatlas.api.rest.replicas import replica_routes
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.fleet.replicas.identity import Identity
from kvatlas.fleet.replicas.picks import Picks
from kvatlas.fleet.replicas.sibling import Sibling, SiblingState
from kvatlas.fleet.replicas.view import ReplicasView
from kvatlas.fleet.replicas.word import Stamp, Vote, Word
from kvatlas.routing.plan.live import LiveConfig
from kvatlas.routing.plan.metrics import ConfigMetrics
from support.fleets import make_fleet


@dataclass
class Shown:
    """Replicas as a test wants them."""

    found: list[Sibling] = field(default_factory=list[Sibling])
    words: dict[str, Word] = field(default_factory=dict[str, Word])
    word: Word = field(default_factory=lambda: Word("me", generation=3, digest="aa"))
    transport: str = "mesh"
    problem: str = ""
    identity: Identity = field(default_factory=lambda: Identity("me", 1, "pool", "seed=0"))
    picks: Picks = field(default_factory=lambda: Picks("me/1"))

    def siblings(self) -> Sequence[Sibling]:
        return self.found


def sibling(name: str, state: SiblingState = SiblingState.LIVE, **more: Any) -> Sibling:
    return Sibling(f"{name}/1", name, "0.1.0", state, more.pop("age_s", 0.1), **more)


@asynccontextmanager
async def client(view: ReplicasView | None) -> AsyncGenerator[httpx.AsyncClient]:
    async def settle() -> None:
        pass

    config = KVAtlasConfig(api_version="kvatlas/v1")
    live = LiveConfig(
        config, switch=lambda _plan, _number: None, settle=settle, metrics=ConfigMetrics(CollectorRegistry())
    )
    app = FastAPI()
    app.include_router(replica_routes(view, live))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as found:
        yield found


async def doctor(view: ReplicasView | None, registry: CollectorRegistry | None = None) -> list[Result]:
    async with make_fleet() as fleet:
        deployment = Deployment(
            config=KVAtlasConfig(api_version="kvatlas/v1"),
            fleet=fleet,
            counts=Counts(registry),
            now=time.monotonic(),
            replicas=view,
        )
        return examine(CHECKS, deployment)


async def test_process_alone_says_so() -> None:
    async with client(None) as rest:
        answer = (await rest.get("/v1/replicas")).json()
    assert (answer["transport"], answer["name"], answer["replicas"], answer["generation"]) == (
        "none",
        None,
        [],
        1,
    )
    assert [each.state.value for each in await doctor(None)] == ["ok", "ok"]


async def test_others_are_shown_by_name_with_their_configuration() -> None:
    words = {"a/1": Word("a", generation=2, digest="bb", refused=Vote(Stamp(3, "me/1"), "no such scorer"))}
    refused = Sibling("c", "c", "", SiblingState.REFUSED, 2.0, reason="c serves another pool than 'pool'")
    view = Shown([sibling("b", SiblingState.SILENT, age_s=7.0), sibling("a", n_bytes=9), refused], words)
    async with client(view) as rest:
        answer = (await rest.get("/v1/replicas")).json()
    rows = [(each["name"], each["state"], each["generation"], each["problem"]) for each in answer["replicas"]]
    assert rows == [
        ("a", "live", 2, "no such scorer"),
        ("b", "silent", None, None),
        ("c", "refused", None, "c serves another pool than 'pool'"),
    ]
    assert (answer["configuration"], answer["replicas"][0]["configuration"]) == ("aa", "bb")
    assert answer["replicas"][0]["receivedBytes"] == 9


async def test_doctor_finds_replicas_that_hear_each_other_and_agree() -> None:
    view = Shown([sibling("a")], {"a/1": Word("a", generation=3, digest="aa")})
    heard, agreed = await doctor(view)
    assert (heard.state.value, agreed.state.value) == ("ok", "ok")
    assert agreed.evidence == ("2 replicas decide by configuration aa",)


async def test_doctor_names_who_is_missing_refused_or_different() -> None:
    (alone, _) = await doctor(Shown())
    assert (alone.state.value, "no other replica is heard" in alone.evidence[0]) == ("warn", True)

    silent, _ = await doctor(Shown([sibling("a", SiblingState.SILENT, age_s=7.0)]))
    assert (silent.state.value, "a has been silent for 7 s" in silent.evidence[0]) == ("warn", True)

    refused, _ = await doctor(Shown([sibling("a", SiblingState.REFUSED, reason="a serves another pool")]))
    assert (refused.state.value, refused.evidence) == (
        "fail",
        ("messages are refused: a serves another pool",),
    )

    behind, _ = await doctor(Shown([sibling("a", SiblingState.BEHIND, n_missing=4)]))
    assert (behind.state.value, "4 messages of a" in behind.evidence[0]) == ("warn", True)

    _, different = await doctor(Shown([sibling("a")], {"a/1": Word("a", generation=2, digest="bb")}))
    assert (different.state.value, "a decides by configuration bb" in different.evidence[0]) == ("warn", True)

    word = Word("a", generation=2, digest="bb", refused=Vote(Stamp(3, "me/1"), "no such scorer"))
    _, failed = await doctor(Shown([sibling("a")], {"a/1": word}))
    assert (failed.state.value, "generation 3 could not be put in force on a" in failed.evidence[0]) == (
        "fail",
        True,
    )


async def test_problem_of_the_transport_is_said_once_and_by_all() -> None:
    view = Shown(transport="valkey", problem="the server's certificate is refused")
    heard, _ = await doctor(view)
    assert (heard.state.value, heard.evidence) == (
        "fail",
        ("valkey: the server's certificate is refused",),
    )
    async with client(view) as rest:
        assert (await rest.get("/v1/replicas")).json()["problem"] == "the server's certificate is refused"


async def test_doctor_counts_connections_with_another_secret() -> None:
    registry = CollectorRegistry()
    Counter("kvatlas_replica_refused_total", "x", ["reason"], registry=registry).labels("secret").inc(5)
    heard, _ = await doctor(Shown([sibling("a")]), registry)
    assert heard.state.value == "fail"
    assert "5 connections of replicas with another secret" in heard.evidence[0]
