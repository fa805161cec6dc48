"""Leadership of this process among the replicas, decided by a Lease of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from ...configs.schema import KVAtlasConfig
from ...events.tasks import keep
from .client.api_server import ApiServer
from .client.election import Elector
from .client.lease import LeaseElection, Terms
from .metrics import leader_families
from .problems import Problem, election_problem
from .tasks import end

CHECK_EVERY_S = 0.2
"""Time between two checks whether the lead has expired without renewal, and whether another process has taken it."""

HANDOVER_PERIODS = 3
"""Retry periods to wait for another process to take a Lease that was given up."""

MIN_HANDOVER_S = 2.0
"""Shortest time to wait for that, since a machine may be busy."""


class Leadership:
    """Takes part in the election, and hands the lead over before the process ends.

    Args:
        config: names the Lease, and its durations.
        server: the API server.
        namespace: namespace of the Lease.
        environment: variables of the process; `POD_NAME` becomes part of its identity.
        on_change: called after this process began or ceased to lead.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        server: ApiServer,
        *,
        namespace: str,
        environment: Mapping[str, str],
        on_change: Callable[[], None],
    ) -> None:
        section, kubernetes = config.leader_election, config.endpoints.kubernetes
        name = section.lease_name or "-".join(filter(None, ("kvatlas", kubernetes.inference_pool)))
        terms = Terms(
            lease_s=section.lease_s,
            renew_s=section.renew_deadline,
            retry_s=section.retry_period,
        )
        identity = f"{environment.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._elector = Elector(
            server,
            namespace=namespace,
            name=name,
            election=LeaseElection(name, identity=identity, terms=terms, rng=random.random),
            limit_s=section.renew_deadline / 2,
            on_change=on_change,
            clock=time.monotonic,
            wall=time.time,
        )
        self._handover_s = max(MIN_HANDOVER_S, HANDOVER_PERIODS * section.retry_period)
        self._hands_over = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here: this process leads, or is handing the lead over."""
        return self._elector.leads or self._hands_over

    @property
    def problem(self) -> Problem | None:
        """Why the Lease cannot be used; None if it can."""
        return election_problem(self._elector)

    @property
    def state(self) -> str:
        """Who leads, in words."""
        if self._elector.holds_on:
            return "this process leads on without a renewed Lease, until the API server answers"
        if self.is_ready:
            return "this process leads"
        leader = self._elector.leader
        return f"{leader} leads, or did until now" if leader else "no replica leads yet"

    def start(self) -> None:
        """Start to take part."""
        self._tasks.append(keep(self._elector.run, "election"))
        self._tasks.append(keep(lambda: self._elector.watch(CHECK_EVERY_S), "lead"))

    async def hand_over(self, *, notice_s: float) -> None:
        """Give the lead to another process, and stay ready for `notice_s` more, until gateways have found that one.

        Returns at once if this process does not lead, and soon if no other process wants the lead.
        """
        if not self._elector.leads:
            return
        self._hands_over = True
        await end(self._tasks)
        if await self._elector.resign():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._handover_s):
                    await self._elector.until_taken(every_s=CHECK_EVERY_S)
                await asyncio.sleep(notice_s)
        self._hands_over = False

    async def resign(self) -> None:
        """Stop to take part, and give up the lead; another process may lead at once."""
        await end(self._tasks)
        await self._elector.resign()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of the election."""
        yield from leader_families(self._elector)
