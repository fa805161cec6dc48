"""What a process has to do with its cluster: endpoints come from it, and who leads is decided in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from ...configs.schema import EventsConfig, KVAtlasConfig
from ...events.sockets import spawn
from ..errors import ConfigRefusedError
from ..fleet import Fleet
from ..roster import Roster, Wanted
from ..snapshots import Snapshots
from .client.access import find_access
from .client.api_server import ApiServer
from .client.backoff import Pace
from .client.election import Elector
from .client.lease import LeaseElection, Terms
from .discovery import Discovery, namespace_of
from .metrics import kubernetes_families, leader_families
from .pods import PodEndpoint
from .rewrites import ModelRewrites

log = logging.getLogger(__name__)

LEFT_OUT_S = 1.0
"""Time between two tries to follow endpoints that could not be followed; freed sockets count as used for a moment."""

LEAD_LOOK_S = 0.2
"""Time between two looks whether the lead has ended without renewal, and whether another process has taken it."""

HANDOVER_PERIODS = 3
"""Looks of other processes at a Lease that was given up, after which there is none that wants it."""

LEAST_HANDOVER_S = 2.0
"""Time that they get all the same: a machine may be busy."""


class Cluster:
    """The process's part in a cluster; without `endpoints.kubernetes` and `leaderElection` it has none.

    Args:
        config: says which part.
        fleet: gets the discovered endpoints.
        snapshots: what discovered endpoints go on from.
        on_change: told when `is_ready` may have changed.
        environment: variables of the process.

    Raises:
        AccessError: there is no way to an API server.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        *,
        fleet: Fleet,
        snapshots: Snapshots,
        on_change: Callable[[], None],
        environment: Mapping[str, str],
    ) -> None:
        kubernetes, self._on_change = config.endpoints.kubernetes, on_change
        self._fleet, self._roster, self._snapshots = fleet, Roster(fleet), snapshots
        self._told: Mapping[str, PodEndpoint] = {}
        self._known: Mapping[str, PodEndpoint] = {}
        self._left = asyncio.Event()
        self._left_out: set[str] = set()
        self._loading: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._election: list[asyncio.Task[None]] = []
        self._hands_over = False
        self._handover_s = max(LEAST_HANDOVER_S, HANDOVER_PERIODS * config.leader_election.retry_period)
        self._server: ApiServer | None = None
        self._discovery: Discovery | None = None
        self._elector: Elector | None = None
        if not kubernetes.is_on and not config.leader_election.enabled:
            return
        access = find_access(kubernetes.kubeconfig, environment)
        namespace = namespace_of(kubernetes, environment, access.namespace)
        self._server = ApiServer(access, clock=time.monotonic)
        if kubernetes.is_on:
            self._discovery = Discovery(
                kubernetes,
                config.events,
                server=self._server,
                namespace=namespace,
                tell=self.bring,
                pace=Pace(),
                clock=time.monotonic,
                rng=random.random,
            )
        if config.leader_election.enabled:
            self._elector = _elector(config, self._server, namespace, environment, on_change)

    @property
    def is_synced(self) -> bool:
        """Whether the pods are known, if they are asked for, and none waits for what a snapshot has of it."""
        return self._discovery is None or (self._discovery.synced and not self._loading)

    @property
    def endpoints(self) -> Mapping[str, Wanted]:
        """The discovered endpoints by name, as they change."""
        return self._roster.wanted

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here, as far as the cluster goes: pods are known, and this process leads."""
        return self.is_synced and (self._elector is None or self._elector.leads or self._hands_over)

    @property
    def priorities(self) -> Mapping[str, int]:
        """Objective -> priority, as the pool's objects say; the mapping changes with them."""
        return self._discovery.priorities if self._discovery else {}

    @property
    def rewrites(self) -> ModelRewrites | None:
        """Models that the pool's objects put in the place of others; None without discovery."""
        return self._discovery.rewrites if self._discovery else None

    def configure(self, events: EventsConfig) -> None:
        """Look for events elsewhere from now on."""
        if self._discovery is not None:
            self._discovery.configure(events)

    async def start(self) -> None:
        """Begin to follow, and to take part in the election."""
        if self._server is None:
            return
        await self._server.start()
        self._tasks.append(spawn(self._release(), "discovery release"))
        if self._discovery is not None:
            self._tasks.append(spawn(self._discovery.run(), "discovery"))
        if self._elector is not None:
            self._election.append(spawn(self._elector.run(), "election"))
            self._election.append(spawn(self._elector.watch(LEAD_LOOK_S), "lead"))

    async def hand_over(self, *, notice_s: float) -> None:
        """Leave the lead to another process, and stay ready until gateways had `notice_s` to find that one.

        Nothing where this process does not lead; soon over where no other wants to.
        """
        if self._elector is None or not self._elector.leads:
            return
        self._hands_over = True
        await _end(self._election)
        if await self._elector.resign():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._handover_s):
                    await self._elector.until_taken(every_s=LEAD_LOOK_S)
                await asyncio.sleep(notice_s)
        self._hands_over = False

    async def resign(self) -> None:
        """Take no further part; another process may lead at once. What was discovered stays."""
        await _end(self._tasks)
        await _end(self._election)
        if self._elector is not None:
            await self._elector.resign()
        if self._server is not None:
            await self._server.stop()

    def families(self) -> Iterator[Metric]:
        """Metrics of what it does."""
        yield from kubernetes_families(self._discovery.followers() if self._discovery else ())
        yield from leader_families(self._elector)

    def bring(self, endpoints: Mapping[str, PodEndpoint]) -> None:
        """Bring the fleet to the discovered endpoints. What goes or moves goes first, so that nothing of it stays.

        Endpoints of which there is a snapshot come one by one, since loading takes its time. Those that cannot come,
        since their name is taken or there are too many sockets, are left out.
        """
        wanted = {name: _wanted(each) for name, each in endpoints.items()}
        stays = {name: each for name, each in wanted.items() if self._is_same(name, endpoints[name])}
        self._loading = {
            name for name, each in wanted.items() if name not in stays and self._snapshots.has(name, each)
        }
        if self._roster.bring_to(stays).before or self._loading:
            self._left.set()
        try:
            self._roster.bring_to({name: each for name, each in wanted.items() if name not in self._loading})
        except ConfigRefusedError:
            self._left.set()  # one by one, once the sockets of what has gone are free
        self._told = endpoints
        self._left_out &= endpoints.keys()
        self._known = {name: each for name, each in endpoints.items() if name in self._roster.wanted}
        log.info("the cluster has %d endpoint(s)", len(endpoints))
        self._on_change()

    def _is_same(self, name: str, endpoint: PodEndpoint) -> bool:
        known = self._known.get(name)
        return known is not None and (known.uid, known.addresses) == (endpoint.uid, endpoint.addresses)

    async def _release(self) -> None:
        """Free the sockets of what has gone, and bring what could not come with the others."""
        while True:
            await self._left.wait()
            self._left.clear()
            await self._fleet.release()
            with self._snapshots.loading():
                for name, endpoint in self._told.items():
                    if name not in self._known and self._told.get(name) is endpoint:
                        self._bring_one(name, endpoint)
                        await asyncio.sleep(0)  # health checks want answers
            if self._known.keys() != self._told.keys():
                await asyncio.sleep(LEFT_OUT_S)
                self._left.set()

    def _bring_one(self, name: str, endpoint: PodEndpoint) -> None:
        wanted = _wanted(endpoint)
        saved = self._snapshots.take(name, wanted)
        self._loading.discard(name)
        try:
            self._roster.bring_to(
                {**self._roster.wanted, name: wanted}, saved={name: saved} if saved else None
            )
        except ConfigRefusedError as error:
            level = logging.DEBUG if name in self._left_out else logging.WARNING
            log.log(level, "a discovered endpoint is left out: %s", error)
            self._left_out.add(name)
        else:
            self._known = {**self._known, name: endpoint}
            self._left_out.discard(name)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def _wanted(endpoint: PodEndpoint) -> Wanted:
    return Wanted(endpoint.addresses, endpoint.labels, endpoint.uid)


def _elector(
    config: KVAtlasConfig,
    server: ApiServer,
    namespace: str,
    environment: Mapping[str, str],
    tell: Callable[[], None],
) -> Elector:
    section, kubernetes = config.leader_election, config.endpoints.kubernetes
    name = section.lease_name or "-".join(filter(None, ("kvatlas", kubernetes.inference_pool)))
    terms = Terms(
        lease_s=max(1, round(section.lease_duration)),
        renew_s=section.renew_deadline,
        retry_s=section.retry_period,
    )
    identity = f"{environment.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return Elector(
        server,
        namespace=namespace,
        name=name,
        election=LeaseElection(name, identity=identity, terms=terms, rng=random.random),
        limit_s=section.renew_deadline / 2,
        tell=tell,
        clock=time.monotonic,
        wall=time.time,
    )
