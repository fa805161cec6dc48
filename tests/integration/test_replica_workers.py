"""Workers of several pods as replicas: over Unix sockets in a pod, and over a real server between pods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from kvatlas.app.replicas.pod import Place
from kvatlas.app.replicas.replicas import Replicas
from kvatlas.configs.replicas import ReplicasConfig, ValkeyConfig
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.fleet.replicas.sibling import SiblingState
from kvatlas.scorers.core.model import IDLE, InFlightLoad
from support.valkey_process import one
from support.waiting import until

N_WORKERS = 2


@asynccontextmanager
async def pods(folder: Path, *configs: ReplicasConfig) -> AsyncGenerator[list[Replicas]]:
    """Run the workers of one pod for each configuration."""
    made: list[Replicas] = []
    for number, replicas in enumerate(configs):
        sockets = folder / f"pod{number}"
        sockets.mkdir()
        config = KVAtlasConfig(api_version="kvatlas/v1", replicas=replicas)
        made += [Replicas(config, place=Place(each, N_WORKERS, sockets)) for each in range(N_WORKERS)]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            await each.stop()


def names(replicas: Replicas) -> list[str]:
    """Return the names of the siblings that live."""
    return sorted(each.name for each in replicas.siblings() if each.state is SiblingState.LIVE)


async def until_heard(all_: Sequence[Replicas], among: Sequence[str]) -> None:
    """Wait until each replica hears the others of these names, and no more."""
    for each in all_:
        wanted = sorted(set(among) - {each.identity.name})
        await until(lambda each=each, wanted=wanted: names(each) == wanted, what=f"{wanted} live")  # type: ignore[misc]


def counts(replicas: Replicas, load: InFlightLoad) -> bool:
    return replicas.knowledge.bookings.of("a") == load


async def test_workers_of_a_pod_share_and_name_each_other(tmp_path: Path) -> None:
    async with pods(tmp_path, ReplicasConfig(name="p")) as (first, second):
        await until_heard([first, second], ["p.0", "p.1"])
        assert [first.mates, second.mates] == [frozenset({"p.1"}), frozenset({"p.0"})]
        first.knowledge.bookings.publish("a", InFlightLoad(1, 10))
        await until(partial(counts, second, InFlightLoad(1, 10)), what="what the other has in flight")
        await first.stop()
        await until(partial(counts, second, IDLE), what="the end of what the other had in flight")


async def test_workers_of_two_pods_share_and_those_of_one_go_on_without_the_server(tmp_path: Path) -> None:
    async with one(tmp_path) as server:
        both = [
            ReplicasConfig(transport="valkey", name=pod, valkey=ValkeyConfig(address=server.address))
            for pod in ("p", "q")
        ]
        async with pods(tmp_path, *both) as workers:
            await until_heard(workers, ["p.0", "p.1", "q.0", "q.1"])
            workers[0].knowledge.bookings.publish("a", InFlightLoad(1, 10))
            for each in workers[1:]:
                await until(partial(counts, each, InFlightLoad(1, 10)), what="what one has in flight")

            await server.kill()
            await until_heard(workers[:2], ["p.0", "p.1"])
            await until_heard(workers[2:], ["q.0", "q.1"])
            assert counts(workers[1], InFlightLoad(1, 10))
            await until(partial(counts, workers[2], IDLE), what="the silence of the other pod")

            await server.start()
            await until_heard(workers, ["p.0", "p.1", "q.0", "q.1"])
            await until(partial(counts, workers[3], InFlightLoad(1, 10)), what="what one has in flight again")
