"""Requests and tokens in flight per endpoint. Exact for this process: each booking ends once.

If the gateway hides a response, its end is not seen. Such an unseen booking stays until the endpoint's own load shows fewer
requests, or until it is too old.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from ..scorers.core.model import IDLE, InFlightLoad, Load

SETTLE_S = 0.5
"""Age at which a request counts as part of its endpoint's load: it must arrive and be tokenized first."""

UNSEEN_S = 60.0
"""Age at which a unseen booking ends even if the load is unknown. Few responses take longer."""


class Siblings(Protocol):
    """Other processes that send requests to the same endpoints."""

    def of(self, endpoint: str) -> InFlightLoad:
        """Return what they have in flight there, as last received."""
        ...

    def publish(self, endpoint: str, load: InFlightLoad) -> None:
        """Send them this process's changed load of the endpoint."""
        ...

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Call `on_change` with the name of an endpoint whenever the result of `of` changes."""
        ...


class _Account:
    """Bookings of one endpoint, until it is forgotten.

    Args:
        endpoint: its name.
        hiding: accounts with unseen bookings; the account adds itself.
        on_change: called with the endpoint and its load after every change.
    """

    __slots__ = ("_by_age", "_compared_at", "_endpoint", "_hiding", "_load", "_on_change", "unseen")

    def __init__(
        self, endpoint: str, hiding: dict[str, _Account], on_change: Callable[[str, InFlightLoad], None]
    ) -> None:
        self.unseen: dict[Booking, None] = {}
        self._by_age: list[tuple[float, int, Booking]] = []
        """Heap of all unseen bookings, oldest first; some may have ended."""
        self._compared_at = -math.inf
        self._endpoint, self._load = endpoint, IDLE
        self._hiding, self._on_change = hiding, on_change

    def add(self, requests: int, tokens: int) -> None:
        self._load = InFlightLoad(self._load.requests + requests, self._load.tokens + tokens)
        self._on_change(self._endpoint, self._load)

    def hide(self, booking: Booking) -> None:
        self.unseen[booking] = None
        heappush(self._by_age, (booking.at, id(booking), booking))
        self._hiding[self._endpoint] = self

    def leave(self) -> None:
        """Detach the account from the fleet, because the endpoint was removed."""
        self._hiding, self._on_change = {}, _ignore

    def expire(self, *, until: float) -> None:
        """End unseen bookings made at or before `until`."""
        while self._by_age and self._by_age[0][0] <= until:
            heappop(self._by_age)[2].ended()
        if not self.unseen:
            self._by_age.clear()

    def compare(self, load: Load) -> None:
        """End the oldest unseen bookings, as many as exceed the endpoint's own count of requests."""
        if load.updated_at <= self._compared_at:
            return
        self._compared_at = load.updated_at
        settled = [each for each in self.unseen if each.at <= load.updated_at - SETTLE_S]
        settled.sort(key=lambda each: each.at)
        n_gone = max(0, len(settled) - load.waiting - load.running)
        for booking in settled[:n_gone]:
            booking.noticed()
            booking.ended()
        for booking in settled[n_gone : max(n_gone, len(settled) - load.waiting)]:
            booking.noticed()
            booking.begun()


class Booking:
    """One routed request, from the pick to the end of its response; made by `InFlight.book`.

    Attributes:
        at: monotonic seconds of the pick.
    """

    __slots__ = ("_account", "_is_open", "_on_begun", "_tokens", "at")

    def __init__(self, account: _Account, tokens: int, at: float) -> None:
        self.at = at
        self._account, self._tokens, self._is_open = account, tokens, True
        self._on_begun: Callable[[], None] | None = None
        account.add(1, tokens)

    def begun(self) -> None:
        """Note that the response began, so the prompt is computed. Idempotent."""
        if self._tokens:
            self._account.add(0, -self._tokens)
            self._tokens = 0

    def ended(self) -> None:
        """Note that the response ended or will not come. Idempotent."""
        if self._is_open:
            self._account.add(-1, -self._tokens)
            self._account.unseen.pop(self, None)
            self._tokens, self._is_open = 0, False

    def unseen(self, on_begun: Callable[[], None] | None = None) -> None:
        """Mark the booking as unseen: its end will not be reported. Does nothing after the end.

        Args:
            on_begun: called once if the endpoint's own load shows that the prompt does not wait any more.
        """
        if self._is_open:
            self._on_begun = on_begun
            self._account.hide(self)

    def noticed(self) -> None:
        """Note that the endpoint's own load shows that the prompt does not wait any more. Idempotent."""
        on_begun, self._on_begun = self._on_begun, None
        if on_begun is not None:
            on_begun()


class InFlight:
    """Bookings of all endpoints. For one event loop; no locks.

    Args:
        siblings: other processes that send requests to the same endpoints; None if there are none.
        on_change: called with the endpoint and the result of `of` whenever that changes.
    """

    def __init__(
        self,
        siblings: Siblings | None = None,
        *,
        on_change: Callable[[str, InFlightLoad], None] | None = None,
    ) -> None:
        self._accounts: dict[str, _Account] = {}
        self._loads: dict[str, InFlightLoad] = {}
        self._hiding: dict[str, _Account] = {}
        self._siblings, self._on_change = siblings, on_change or _ignore
        if siblings is not None:
            siblings.listen(lambda endpoint: self._on_change(endpoint, self.of(endpoint)))

    @property
    def has_unseen(self) -> bool:
        """Whether there are unseen bookings, so that `settle` has work."""
        return bool(self._hiding)

    def own(self, endpoint: str) -> InFlightLoad:
        """Return the load sent by this process, zero for an unknown endpoint. Cost: O(1)."""
        return self._loads.get(endpoint, IDLE)

    def of(self, endpoint: str) -> InFlightLoad:
        """Return the endpoint's load, sent by this process and its siblings. Cost: O(1)."""
        own = self.own(endpoint)
        if self._siblings is None:
            return own
        others = self._siblings.of(endpoint)
        return InFlightLoad(own.requests + others.requests, own.tokens + others.tokens)

    def n_unseen(self, endpoint: str) -> int:
        """Return the number of unseen bookings."""
        account = self._accounts.get(endpoint)
        return len(account.unseen) if account is not None else 0

    def settle(self, load_of: Callable[[str], Load | None], *, now: float) -> None:
        """End unseen bookings that exceed their endpoint's own load, and those that are too old.

        Args:
            load_of: endpoint -> its own load, None if unknown.
            now: monotonic seconds.
        Cost: O(endpoints with unseen bookings), plus one sort of them per new load.
        """
        for endpoint, account in list(self._hiding.items()):
            if (load := load_of(endpoint)) is not None:
                account.compare(load)
            account.expire(until=now - UNSEEN_S)
            if not account.unseen:
                del self._hiding[endpoint]

    def book(self, endpoint: str, *, tokens: int, now: float) -> Booking:
        """Book a request that is sent to the endpoint.

        Args:
            endpoint: name of the endpoint.
            tokens: prompt tokens it is expected to compute.
            now: monotonic seconds.
        """
        account = self._accounts.get(endpoint)
        if account is None:
            account = self._accounts[endpoint] = _Account(endpoint, self._hiding, self._changed)
        return Booking(account, tokens, now)

    def forget(self, endpoint: str) -> None:
        """Forget a removed endpoint. Its open bookings may still end; they do not affect a new endpoint of that name."""
        account = self._accounts.pop(endpoint, None)
        if account is not None:
            account.leave()
            self._hiding.pop(endpoint, None)
            if self._siblings is not None:
                self._siblings.publish(endpoint, IDLE)
            self._loads.pop(endpoint, None)
            self._on_change(endpoint, self.of(endpoint))

    def _changed(self, endpoint: str, load: InFlightLoad) -> None:
        self._loads[endpoint] = load
        if self._siblings is not None:
            self._siblings.publish(endpoint, load)
            load = self.of(endpoint)
        self._on_change(endpoint, load)


def _ignore(endpoint: str, load: InFlightLoad) -> None:
    pass
