"""Leader election by a Lease, as a state machine without I/O.

One process holds the Lease and renews it. The others read it, and take it if the holder gave it up or did not renew it for
its whole duration. They measure that with their own clock, so wrong clocks elsewhere do no harm. The holder stops leading
before others may take over. Source: client-go, tools/leaderelection.

While the API server does not answer, nobody can take the Lease, so the last holder goes on leading; client-go would stop. Only
time in which the server answers counts as silence of the holder, so it can renew the Lease first after an outage. A holder
that is cut off alone cannot know that: it leads beside its successor until the server answers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from .list_watch import Pause
from .wire import DECODE_ERRORS

_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`coordination.k8s.io/v1` LeaseSpec."""

    holder_identity: str | None = None
    """Identity of the holder; absent or empty if nobody holds it."""
    lease_duration_seconds: _Int32 | None = None
    """Time without renewal after which others may take it, seconds."""
    acquire_time: str | None = None
    """Time at which the holder took it; UTC with microseconds."""
    renew_time: str | None = None
    """Time of the last renewal; UTC with microseconds."""
    lease_transitions: _Int32 | None = None
    """Number of changes of the holder."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Lease. Its metadata is written back unchanged."""

    api_version: str = "coordination.k8s.io/v1"
    """Version."""
    kind: str = "Lease"
    """Kind."""
    metadata: dict[str, object]
    """Name, resourceVersion and all other fields."""
    spec: LeaseSpec = LeaseSpec()
    """Holder and durations."""


def read_lease(body: bytes) -> Lease | None:
    """Decode a Lease, None if the body is something else."""
    try:
        return msgspec.json.decode(body, type=Lease)
    except DECODE_ERRORS:
        return None


@dataclass(frozen=True, slots=True)
class Terms:
    """Durations of an election; the defaults are those of client-go.

    Attributes:
        lease_s: time without renewal after which others may take the Lease.
        renew_s: time without successful renewal after which the holder stops leading, unless the server does not answer;
            less than `lease_s`.
        retry_s: time between two reads or renewals.
    """

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Step: read the Lease."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Step: create or replace the Lease.

    Attributes:
        lease: content to write.
        is_new: whether to create it.
    """

    lease: Lease
    is_new: bool


LeaseStep = ReadLease | WriteLease | Pause


class LeaseElection:
    """One process's part in an election.

    Args:
        name: name of the Lease.
        identity: unique identity of this process.
        terms: durations.
        rng: uniform in [0, 1); spreads the reads of several processes.
    """

    def __init__(self, name: str, *, identity: str, terms: Terms, rng: Callable[[], float]) -> None:
        self._name, self._identity, self._terms, self._rng = name, identity, terms, rng
        self._known: Lease | None = None
        self._is_known = self._was_refused = False
        self._silent_since: float | None = None
        self._next_at = 0.0
        self._renewed_until = self._held_until = -math.inf

    def leads(self, now: float) -> bool:
        """Return whether this process leads."""
        return self.left_s(now) > 0

    def left_s(self, now: float) -> float:
        """Return the time for which this process leads without further responses; not above 0 if it does not lead."""
        return max(self._renewed_until, self._held_until) - now

    def holds_on(self, now: float) -> bool:
        """Return whether this process leads without a renewed Lease, since the API server does not answer."""
        return self._renewed_until <= now < self._held_until

    @property
    def leader(self) -> str:
        """Identity of the last known holder; empty for nobody."""
        return (self._known.spec.holder_identity or "") if self._known is not None else ""

    def step(self, now: float, *, wall: float) -> LeaseStep:
        """Return the next step; report its result by `found`, `written`, `refused` or `failed`.

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
        """Take the Lease as read, None if it does not exist."""
        is_same = lease is not None and self._known is not None and lease.spec == self._known.spec
        if self._silent_since is None or not is_same:
            self._silent_since = now
        self._known, self._is_known = lease, True
        if not self._may_take(now):
            self._stop()
            self._wait(now)
            self._next_at = min(self._next_at, self._silent_since + self._duration_s)

    def written(self, lease: Lease, *, now: float, asked_at: float) -> None:
        """Take the Lease as written; this process leads for `renew_s` from `asked_at`."""
        self._known, self._is_known, self._was_refused = lease, True, False
        self._silent_since = now
        self._renewed_until = asked_at + self._terms.renew_s
        self._wait(now)

    def refused(self, *, now: float) -> None:
        """Handle a conflict: another process wrote first, so read again."""
        self._is_known = False
        self._held_until = -math.inf
        self._wait(now)

    def failed(self, *, now: float, is_outage: bool, is_cut: bool = False) -> bool:
        """Handle a failed request; return whether it counts as an outage.

        The Lease is read next, since a lost request may have changed it.

        Args:
            now: monotonic seconds.
            is_outage: whether the API server did not answer or is out of order. A lead lasts `renew_s` longer then;
                otherwise it expires by time.
            is_cut: whether the answer was awaited for less than usual, since the lead was about to expire. A server that
                has refused something since the last renewal is not out of order then.
        """
        self._is_known = False
        is_outage = is_outage and not (is_cut and self._was_refused)
        self._was_refused = self._was_refused or not is_outage
        if is_outage:
            self._silent_since = None
            if self.leads(now):
                self._held_until = now + self._terms.renew_s
        self._wait(now)
        return is_outage

    def release(self, *, wall: float) -> WriteLease | None:
        """Return the step that gives up the Lease, None if this process does not hold it."""
        self._stop()
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
        return self._silent_since is not None and now - self._silent_since >= self._duration_s

    @property
    def _duration_s(self) -> float:
        """Time without renewal after which the known Lease may be taken."""
        given_s = (self._known.spec.lease_duration_seconds or 0) if self._known is not None else 0
        return given_s if given_s > 0 else self._terms.lease_s

    def _stop(self) -> None:
        self._renewed_until = self._held_until = -math.inf

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
    """Format wall-clock seconds as a Kubernetes MicroTime."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
