"""Who leads, by a Lease: what was found in, what to do out.

One process holds the Lease and renews it; the others read it, and take it when its holder gave it up or has not renewed
it for its whole duration by *their* clock, so that wrong clocks elsewhere do no harm. The holder stops to lead before
others may take over. Source: client-go, tools/leaderelection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from .list_watch import Pause
from .wire import DECODE_ERRORS


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`coordination.k8s.io/v1` LeaseSpec."""

    holder_identity: str | None = None
    """Who leads; absent or empty: nobody."""
    lease_duration_seconds: int | None = None
    """Time without renewal after which others may take it."""
    acquire_time: str | None = None
    """When the holder took it; UTC with microseconds."""
    renew_time: str | None = None
    """When the holder last renewed it."""
    lease_transitions: int | None = None
    """How often it changed hands."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Lease. Its metadata goes back as it came."""

    api_version: str = "coordination.k8s.io/v1"
    """Version."""
    kind: str = "Lease"
    """Kind."""
    metadata: dict[str, object]
    """Name, resourceVersion and whatever else it has."""
    spec: LeaseSpec = LeaseSpec()
    """Who leads."""


def read_lease(body: bytes) -> Lease | None:
    """A Lease; None when it is none."""
    try:
        return msgspec.json.decode(body, type=Lease)
    except DECODE_ERRORS:
        return None


@dataclass(frozen=True, slots=True)
class Terms:
    """How long things may take; the defaults are client-go's.

    Attributes:
        lease_s: time without renewal after which others may take the Lease.
        renew_s: time without a renewal that worked after which the holder stops to lead; less than `lease_s`.
        retry_s: time between two looks or renewals.
    """

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Step: get the Lease."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Step: make the Lease, or replace the one that was found.

    Attributes:
        lease: what to write.
        is_new: whether there was none.
    """

    lease: Lease
    is_new: bool


LeaseStep = ReadLease | WriteLease | Pause


class LeaseElection:
    """One process's part in an election.

    Args:
        name: of the Lease.
        identity: of this process, unlike any other's.
        terms: durations.
        rng: uniform in [0, 1); spreads the looks of several followers.
    """

    def __init__(self, name: str, *, identity: str, terms: Terms, rng: Callable[[], float]) -> None:
        self._name, self._identity, self._terms, self._rng = name, identity, terms, rng
        self._known: Lease | None = None
        self._is_known = False
        self._changed_at = 0.0
        self._next_at = 0.0
        self._leads_until: float | None = None

    def leads(self, now: float) -> bool:
        """Whether this process leads."""
        return self._leads_until is not None and now < self._leads_until

    @property
    def leader(self) -> str:
        """Who holds the Lease as last seen; empty for nobody."""
        return (self._known.spec.holder_identity or "") if self._known is not None else ""

    def step(self, now: float, *, wall: float) -> LeaseStep:
        """What to do next; `found`, `written`, `refused` or `failed` tell how it went.

        Args:
            now: monotonic seconds.
            wall: seconds since 1970, for the times in the Lease.
        """
        if now < self._next_at:
            return Pause(self._next_at - now)
        if not self._is_known:
            return ReadLease()
        if self._may_take(now):
            return WriteLease(self._ours(wall), is_new=self._known is None)
        self._is_known = False
        return ReadLease()

    def found(self, lease: Lease | None, *, now: float) -> None:
        """The Lease as read; None when there is none."""
        if lease is None or self._known is None or lease.spec != self._known.spec:
            self._changed_at = now
        self._known, self._is_known = lease, True
        if not self._may_take(now):
            self._wait(now)

    def written(self, lease: Lease, *, now: float, asked_at: float) -> None:
        """The Lease was written; this process leads for `renew_s` from when it asked."""
        self._known, self._is_known = lease, True
        self._changed_at = now
        self._leads_until = asked_at + self._terms.renew_s
        self._wait(now)

    def refused(self, *, now: float) -> None:
        """Somebody else wrote first: look again."""
        self._is_known = False
        self._wait(now)

    def failed(self, *, now: float) -> None:
        """The API server did not answer. What is known stays; leading ends by itself."""
        self._wait(now)

    def release(self, *, wall: float) -> WriteLease | None:
        """Step that gives the Lease up, for a process that ends; None when it is not ours, or was given up."""
        self._leads_until = None
        ours, self._known = self._known if self.leader == self._identity else None, None
        if ours is None:
            return None
        spec = msgspec.structs.replace(
            ours.spec, holder_identity="", lease_duration_seconds=1, renew_time=_time(wall)
        )
        return WriteLease(msgspec.structs.replace(ours, spec=spec), is_new=False)

    def _may_take(self, now: float) -> bool:
        if self._known is None or self.leader in ("", self._identity):
            return True
        duration_s = self._known.spec.lease_duration_seconds or self._terms.lease_s
        return now - self._changed_at >= duration_s

    def _ours(self, wall: float) -> Lease:
        time = _time(wall)
        if self._known is None:
            spec, metadata = LeaseSpec(acquire_time=time), dict[str, object](name=self._name)
        else:
            spec, metadata = self._known.spec, self._known.metadata
        if self.leader != self._identity:
            n_before = 0 if self._known is None else (spec.lease_transitions or 0) + 1
            spec = msgspec.structs.replace(spec, acquire_time=time, lease_transitions=n_before)
        spec = msgspec.structs.replace(
            spec, holder_identity=self._identity, lease_duration_seconds=self._terms.lease_s, renew_time=time
        )
        return Lease(metadata=metadata, spec=spec)

    def _wait(self, now: float) -> None:
        self._next_at = now + self._terms.retry_s * (1 + 0.2 * self._rng())


def _time(wall: float) -> str:
    """MicroTime as Kubernetes writes it."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
