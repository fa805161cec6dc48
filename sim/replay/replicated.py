"""Replays with several replicas of a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ...configs.schema import KVAtlasConfig
from ...fleet.replicas.knowledge import Knowledge
from ...fleet.replicas.picks import Picks
from ...indexer.factory import index_core
from ...routing.request_draws import RequestDraws
from ...scorers.core.base import Rng
from ..traces.trace import Trace
from .figures import figures
from .fleet_spec import FleetSpec
from .indexed_router import IndexedRouter
from .replica_network import ReplicaNetwork, Sharing
from .replicated_router import Agreement, ReplicatedRouter
from .router import RouteRequest
from .simulation import Replay, Timing


@dataclass(frozen=True, slots=True)
class ReplicatedResult:
    """Result of a replay.

    Attributes:
        agreement: with one router in the same state.
        figures: see `figures.figures`.
        messages: received by all replicas together, per request.
        n_bytes: of these, per request.
        crossed: share of the siblings' picks whose endpoint a replica had picked too, both unknown to each other.
    """

    agreement: Agreement
    figures: dict[str, float]
    messages: float
    n_bytes: float
    crossed: float


def replay_replicas(
    trace: Trace,
    fleet: FleetSpec,
    config: KVAtlasConfig,
    sharing: Sharing,
    *,
    replicas: int,
    warm_up: int = 0,
    chance: str = "",
) -> ReplicatedResult:
    """Replay a trace with several replicas; requests go to them in turn. Equal arguments give equal results.

    Chance follows from the number of a request, so that equal scores give equal picks.

    Args:
        trace: requests.
        fleet: engines.
        config: of every replica.
        sharing: what they share; nothing with an empty set of channels.
        replicas: how many, at least one.
        warm_up: number of first requests that are not counted.
        chance: each has other draws for every request.
    """

    def draws(request: RouteRequest) -> Rng:
        return RequestDraws(f"{chance}{request.number}")

    network = ReplicaNetwork(sharing, Random("lost messages"))
    routers: list[IndexedRouter] = []
    picks: list[Picks] = []
    for _ in range(replicas):
        knowledge = Knowledge(network.clock, me=network.next_id)
        picks.append(knowledge.picks)
        routers.append(_router(config, fleet, knowledge, draws))
        network.join(knowledge.channels)
    router = ReplicatedRouter(routers, _router(config, fleet, None, draws), network, counts_from=warm_up)
    replayed = Replay(trace, fleet, router, timing=Timing(), rng=Random("arrivals")).run()
    n_requests = max(1, len(trace.requests))
    replayed.served = [each for each in replayed.served if each.number >= warm_up]
    return ReplicatedResult(
        router.agreement,
        figures(replayed, fleet.names),
        network.messages / n_requests,
        network.n_bytes / n_requests,
        sum(each.n_concurrent for each in picks) / max(1, sum(each.n_heard for each in picks)),
    )


def _router(
    config: KVAtlasConfig,
    fleet: FleetSpec,
    knowledge: Knowledge | None,
    draws: Callable[[RouteRequest], Rng],
) -> IndexedRouter:
    return IndexedRouter(
        config, fleet, core=index_core(), rng=Random(0), knowledge=knowledge, draws=draws
    )  # fmt: skip
