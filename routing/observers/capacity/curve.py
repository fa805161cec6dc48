"""The size curve: prompt tokens that endpoints would find with CPU tiers of other sizes, from live requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ....configs.observers import CapacityCurveConfig
from ....events.tasks import keep
from ....fleet.endpoint import Endpoint
from ....fleet.fleet import Fleet
from ....indexer.prefix import Prefix
from ....indexer.reuse_distance import ReuseDistances
from ....indexer.tiers import TierId
from ....scorers.core.decision import Decision
from ...kv_size import KvSize

GIB = 1 << 30
SIZES_GIB = (0.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 400.0, 600.0, 800.0, 1000.0)
"""Default sizes of the CPU tier."""

MAX_GIB = 1024.0
"""Largest CPU tier of a server that is covered."""

CHUNK_TOKENS = 64
"""Shortest run of blocks, in tokens, that is followed as one: it costs as much as a single block."""

MAX_CHUNKS = 1 << 16
"""Largest cache covered if the memory per token is unknown: 4 million tokens."""

FORGOTTEN_CHUNKS = 1e-9
"""Weight of all prompts of an endpoint below which they are forgotten, after some 40 half-lives without one. Much smaller numbers are
inexact, and become 0 in the end."""

REFRESH_S = 15.0
"""Time between two updates of the metrics."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One size of the CPU tier.

    Attributes:
        gib: CPU tier of each server.
        hit_rate: share of the prompt tokens found, 0 to 1.
        gain: hit rate gained per 10 GiB, up to the next size; None at the last.
    """

    gib: float
    hit_rate: float
    gain: float | None


@dataclass(frozen=True, slots=True)
class ServerCurve:
    """The curve of one endpoint.

    Attributes:
        name: of the endpoint.
        block_size: tokens per block.
        kv: memory per token; None if it is unknown, and then there are no points.
        gpu_tokens: capacity of its GPU tier, None if it is unknown.
        n_tokens: prompt tokens behind the curve; older ones count less.
        rate: share of the blocks that is followed.
        n_keys: blocks that are followed.
        hit_rate_unbounded: hit rate of a cache without limit.
        points: by size, ascending.
    """

    name: str
    block_size: int
    kv: KvSize | None
    gpu_tokens: int | None
    n_tokens: float
    rate: float
    n_keys: int
    hit_rate_unbounded: float
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class FleetCurve:
    """All endpoints with known memory per token, each with its own CPU tier of that size."""

    points: tuple[CurvePoint, ...] = ()
    servers: tuple[ServerCurve, ...] = ()


@dataclass(slots=True)
class _Server:
    """Followed blocks of one endpoint; `stride` blocks make a chunk."""

    block_size: int
    stride: int
    distances: ReuseDistances

    @property
    def chunk_tokens(self) -> int:
        return self.stride * self.block_size


class CapacityCurve:
    """Curves of the endpoints of a fleet. For one event loop; no locks.

    Args:
        config: how many blocks are followed, and their half-life.
        fleet: the endpoints.
        kv_size: memory per token on an endpoint, None if it is unknown.
        clock: monotonic seconds, as in decisions.
    """

    def __init__(
        self,
        config: CapacityCurveConfig,
        fleet: Fleet,
        kv_size: Callable[[Endpoint], KvSize | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.latest = FleetCurve()
        """The last computed curve, for metrics."""
        self._config, self._fleet, self._kv_size, self._clock = config, fleet, kv_size, clock
        self._servers: dict[str, _Server] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start updating `latest`."""
        self._task = keep(self._keep, "capacity curve", needed=False)

    async def stop(self) -> None:
        """Stop updating `latest`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def routed(self, decision: Decision, prefix: Prefix | None) -> None:
        """Add a routed request. Cost: O(tokens); see `docs/capacity.md`."""
        match = decision.best.prefix
        if prefix is None or match is None or decision.no_prefix_reason is not None or not prefix.n_tokens:
            return
        server = self._servers.get(decision.best.name)
        if server is None or server.block_size != match.block_size:
            server = self._begin(decision.best.name, match.block_size)
        server.distances.use(
            prefix.keys(match.block_size), server.stride, prefix.n_tokens / server.chunk_tokens, decision.at
        )

    async def look(self, sizes_gib: Sequence[float] = SIZES_GIB) -> FleetCurve:
        """Compute the curves at these sizes, ascending. Other tasks run between endpoints, at about 0.3 ms each."""
        found = [0.0] * len(sizes_gib)
        n_tokens = 0.0
        servers: list[ServerCurve] = []
        for name in list(self._servers):
            endpoint, server = self._fleet.get(name), self._servers[name]
            if endpoint is None or server.distances.n_blocks(now=self._clock()) < FORGOTTEN_CHUNKS:
                del self._servers[name]
                continue
            curve = self._curve(endpoint, server, sizes_gib)
            servers.append(curve)
            if curve.points:
                n_tokens += curve.n_tokens
                found = [
                    each + curve.n_tokens * point.hit_rate
                    for each, point in zip(found, curve.points, strict=True)
                ]
            await asyncio.sleep(0)
        rates = [each / n_tokens for each in found] if n_tokens else []
        return FleetCurve(_points(sizes_gib, rates), tuple(servers))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            self.latest = await self.look()

    def _begin(self, name: str, block_size: int) -> _Server:
        """Follow an endpoint that is new, or whose block size changed."""
        endpoint = self._fleet.get(name)
        kv = self._kv_size(endpoint) if endpoint is not None else None
        stride = max(1, CHUNK_TOKENS // block_size)
        chunks = MAX_CHUNKS if kv is None else int(MAX_GIB * GIB / (kv.n_bytes * stride * block_size))
        distances = self._fleet.atlas.core.reuse_distances(
            max_keys=self._config.max_keys_per_endpoint,
            max_capacity=max(1, chunks),
            half_life_s=self._config.half_life,
        )
        server = self._servers[name] = _Server(block_size, stride, distances)
        return server

    def _curve(self, endpoint: Endpoint, server: _Server, sizes_gib: Sequence[float]) -> ServerCurve:
        kv, gpu_tokens = self._kv_size(endpoint), self._gpu_tokens(endpoint.name, server.block_size)
        chunk, distances, now = server.chunk_tokens, server.distances, self._clock()
        sizes = sizes_gib if kv is not None else ()
        tokens = [int(gib * GIB / kv.n_bytes) for gib in sizes] if kv is not None else []
        capacities = [max(gpu_tokens or 0, each) // chunk for each in tokens]
        *hits, unbounded = distances.hits([*capacities, 1 << 62], now=now)
        n_chunks = distances.n_blocks(now=now)
        return ServerCurve(
            name=endpoint.name,
            block_size=server.block_size,
            kv=kv,
            gpu_tokens=gpu_tokens,
            n_tokens=n_chunks * chunk,
            rate=distances.rate,
            n_keys=distances.n_keys,
            hit_rate_unbounded=unbounded / n_chunks,
            points=_points(sizes, [each / n_chunks for each in hits]),
        )

    def _gpu_tokens(self, endpoint: str, block_size: int) -> int | None:
        """Return the GPU capacity of all ranks together."""
        capacities = [ledger.capacity(TierId(0)) for ledger in self._fleet.atlas.ledgers(endpoint)]
        known = [each for each in capacities if each is not None]
        return sum(known) * block_size if known else None


def _points(sizes_gib: Sequence[float], rates: Sequence[float]) -> tuple[CurvePoint, ...]:
    pairs = list(zip(sizes_gib, rates, strict=False))
    gains = [10 * (more - rate) / (larger - size) for (size, rate), (larger, more) in pairwise(pairs)]
    return tuple(
        CurvePoint(size, rate, gain)
        for (size, rate), gain in zip(pairs, [*gains, None][: len(pairs)], strict=True)
    )
