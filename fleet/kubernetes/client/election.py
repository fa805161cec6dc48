"""Task that takes part in a leader election."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from .api_server import ApiServer
from .errors import Failure, RequestFailedError
from .lease import LeaseElection, ReadLease, WriteLease, read_lease
from .list_watch import Pause

log = logging.getLogger(__name__)


class Elector:
    """Carries out the steps of a `LeaseElection`.

    Args:
        server: the API server.
        namespace: namespace of the Lease.
        name: name of the Lease.
        election: decides the steps.
        limit_s: longest time per request; less than the time in which a lead must be renewed.
        on_change: called after this process began or ceased to lead.
        clock: monotonic seconds.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        namespace: str,
        name: str,
        election: LeaseElection,
        limit_s: float,
        on_change: Callable[[], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._server, self._election, self._on_change = server, election, on_change
        self._limit_s, self._clock, self._wall = limit_s, clock, wall
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.path = f"{self._collection}/{name}"
        """Path of the Lease."""
        self.leads = False
        """Whether this process leads."""
        self.n_changes = 0
        """How often it began or ceased to lead."""
        self.problem: Failure | None = None
        """Why the Lease could not be read, or renewed by its holder, at the last attempt; None after success."""
        self._failure: Failure | None = None

    @property
    def leader(self) -> str:
        """Identity of the last known holder of the Lease; empty for nobody."""
        return self._election.leader

    @property
    def holds_on(self) -> bool:
        """Whether this process leads without a renewed Lease, since the API server does not answer."""
        return self._election.holds_on(self._clock())

    async def run(self) -> None:
        """Take part in the election, until cancelled."""
        while True:
            match self._election.step(self._clock(), wall=self._wall()):
                case Pause(seconds):
                    self.problem = self._failure
                    await asyncio.sleep(seconds)
                case ReadLease():
                    await self._read()
                case WriteLease() as write:
                    await self._write(write)
            self._look()

    async def watch(self, interval_s: float) -> None:
        """Detect an expired lead while a renewal hangs, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self._look()

    async def resign(self) -> bool:
        """Give up the Lease, so that another process can lead at once; return whether this process held and released it."""
        try:
            for _ in range(2):
                write = self._election.release(wall=self._wall())
                self._look()
                if write is None:
                    return False
                if await self._replaced(write):
                    return True
                # a cancelled renewal may have been written
                self._election.found(read_lease(await self._fetch(self._time_limit_s())), now=self._clock())
        except RequestFailedError as error:
            log.warning("the Lease could not be given up, others must wait until it expires: %s", error)
        return False

    async def _replaced(self, write: WriteLease) -> bool:
        """Replace the Lease; return False if another process has changed it."""
        try:
            body = msgspec.json.encode(write.lease)
            await self._server.send("PUT", self.path, body=body, limit_s=self._limit_s)
        except RequestFailedError as error:
            if error.failure.status != 409:
                raise
            return False
        return True

    async def until_taken(self, *, every_s: float) -> None:
        """Wait until another process holds the Lease."""
        while True:
            try:
                lease = read_lease(await self._fetch(self._time_limit_s()))
            except RequestFailedError:
                lease = None
            if lease is not None and lease.spec.holder_identity:
                return
            await asyncio.sleep(every_s)

    async def _fetch(self, limit_s: float) -> bytes:
        return await self._server.send("GET", self.path, limit_s=limit_s)

    def _time_limit_s(self) -> float:
        """Return the time limit of the next request: a leader has to know the result before its lead would expire."""
        left_s = self._election.left_s(self._clock())
        return min(self._limit_s, 0.9 * left_s) if left_s > 0 else self._limit_s

    async def _read(self) -> None:
        self._failure, limit_s = None, self._time_limit_s()
        try:
            body = await self._fetch(limit_s)
        except RequestFailedError as error:
            if error.failure.status == 404 and not error.failure.of_proxy:
                self._election.found(None, now=self._clock())
            else:
                self._failed(error.failure, limit_s)
            return
        lease = read_lease(body)
        if lease is None:
            self._failed(Failure("malformed", f"{self.path} is not a Lease"), limit_s)
        else:
            self._election.found(lease, now=self._clock())

    async def _write(self, write: WriteLease) -> None:
        asked_at, self._failure, limit_s = self._clock(), None, self._time_limit_s()
        body = msgspec.json.encode(write.lease)
        method, path = ("POST", self._collection) if write.is_new else ("PUT", self.path)
        try:
            body = await self._server.send(method, path, body=body, limit_s=limit_s)
        except RequestFailedError as error:
            if error.failure.status == 409:
                self._election.refused(now=self._clock())
            else:
                self._failed(error.failure, limit_s)
            return
        self._election.written(read_lease(body) or write.lease, now=self._clock(), asked_at=asked_at)

    def _failed(self, failure: Failure, limit_s: float) -> None:
        self._failure = failure
        is_cut = failure.reason == "timeout" and limit_s < self._limit_s
        is_outage = self._election.failed(now=self._clock(), is_outage=failure.is_outage, is_cut=is_cut)
        level = logging.DEBUG if self.problem else logging.WARNING
        effect = "; this process leads on until the API server answers" if is_outage and self.leads else ""
        log.log(level, "the Lease cannot be used: %s%s", failure.message, effect)

    def _look(self) -> None:
        leads = self._election.leads(self._clock())
        if leads != self.leads:
            self.leads = leads
            self.n_changes += 1
            log.info("this process leads" if leads else "this process does not lead any more")
            self._on_change()
