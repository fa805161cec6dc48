"""What was sent to each endpoint and did not yet end. Exact for this process: each booking ends once.

Where the gateway hides an answer, its end is not seen. Such a booking goes on unseen, until the endpoint's own load tells
that so many requests cannot be there any more, or until it is too old.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Protocol

from ..scorers.core.model import IDLE, InFlightLoad, Load

SETTLE_S = 0.5
"""Age from which a request is taken to show in its endpoint's load: it has to arrive there and to be tokenized first."""

UNSEEN_S = 60.0
"""Age at which an unseen booking ends whatever the load, which may not be known at all. Few answers take longer."""


class Siblings(Protocol):
    """Other processes that send requests to the same endpoints."""

    def of(self, endpoint: str) -> InFlightLoad:
        """What they have sent there, as far as it is known."""
        ...

    def tell(self, endpoint: str, load: InFlightLoad) -> None:
        """This process's own load of the endpoint is another."""
        ...


class _Account:
    """One endpoint's bookings, from the first one to when it is forgotten.

    Args:
        endpoint: its name.
        loads: of all endpoints, where its load is written.
        hiding: the accounts with unseen bookings, of which it may be one.
        siblings: who is told of its load.
    """

    __slots__ = ("_by_age", "_compared_at", "_endpoint", "_hiding", "_load", "_loads", "_siblings", "unseen")

    def __init__(
        self,
        endpoint: str,
        loads: dict[str, InFlightLoad],
        hiding: dict[str, _Account],
        siblings: Siblings | None,
    ) -> None:
        self.unseen: dict[Booking, None] = {}
        self._by_age: list[tuple[float, int, Booking]] = []
        """A heap of all that were unseen, the oldest first; some have ended since."""
        self._compared_at = -math.inf
        self._endpoint, self._load, self._siblings = endpoint, IDLE, siblings
        self._loads, self._hiding = loads, hiding

    def add(self, requests: int, tokens: int) -> None:
        load = InFlightLoad(self._load.requests + requests, self._load.tokens + tokens)
        self._load = self._loads[self._endpoint] = load
        if self._siblings is not None:
            self._siblings.tell(self._endpoint, load)

    def hide(self, booking: Booking) -> None:
        self.unseen[booking] = None
        heappush(self._by_age, (booking.at, id(booking), booking))
        self._hiding[self._endpoint] = self

    def leave(self) -> None:
        """The endpoint is forgotten: nobody asks for what is still booked there."""
        if self._siblings is not None:
            self._siblings.tell(self._endpoint, IDLE)
        self._loads, self._hiding, self._siblings = {}, {}, None

    def expire(self, *, until: float) -> None:
        """End unseen bookings that are as old, or older."""
        while self._by_age and self._by_age[0][0] <= until:
            heappop(self._by_age)[2].ended()
        if not self.unseen:
            self._by_age.clear()

    def compare(self, load: Load) -> None:
        """End unseen bookings that the endpoint's own counts leave no room for, the oldest first."""
        if load.updated_at <= self._compared_at:
            return
        self._compared_at = load.updated_at
        settled = [each for each in self.unseen if each.at <= load.updated_at - SETTLE_S]
        settled.sort(key=lambda each: each.at)
        n_gone = max(0, len(settled) - load.waiting - load.running)
        for booking in settled[:n_gone]:
            booking.ended()
        for booking in settled[n_gone : max(n_gone, len(settled) - load.waiting)]:
            booking.begun()


class Booking:
    """One routed request, from the pick to the end of its answer; made by `InFlight.book`.

    Attributes:
        at: monotonic seconds of the pick.
    """

    __slots__ = ("_account", "_is_open", "_tokens", "at")

    def __init__(self, account: _Account, tokens: int, at: float) -> None:
        self.at = at
        self._account, self._tokens, self._is_open = account, tokens, True
        account.add(1, tokens)

    def begun(self) -> None:
        """The answer began: the prompt is computed. Further calls change nothing."""
        if self._tokens:
            self._account.add(0, -self._tokens)
            self._tokens = 0

    def ended(self) -> None:
        """The answer ended, or will not come. Further calls change nothing."""
        if self._is_open:
            self._account.add(-1, -self._tokens)
            self._account.unseen.pop(self, None)
            self._tokens, self._is_open = 0, False

    def unseen(self) -> None:
        """Nobody will tell how the request goes on. Nothing happens to one that has ended."""
        if self._is_open:
            self._account.hide(self)


class InFlight:
    """Accounts by endpoint. For one event loop; no locks.

    Args:
        siblings: who else sends requests there; None for nobody.
    """

    def __init__(self, siblings: Siblings | None = None) -> None:
        self._accounts: dict[str, _Account] = {}
        self._loads: dict[str, InFlightLoad] = {}
        self._hiding: dict[str, _Account] = {}
        self._siblings = siblings

    def own(self, endpoint: str) -> InFlightLoad:
        """What this process has sent there; nothing for an endpoint that was never booked. Cost: O(1), nothing is made."""
        return self._loads.get(endpoint, IDLE)

    def loads(self, endpoints: Iterable[str]) -> Mapping[str, InFlightLoad]:
        """`of` each of these endpoints; those with nothing in flight may be absent, and others may be there.

        Cost: O(1), and O(endpoints) with siblings. Good until the next booking.
        """
        if self._siblings is None:
            return self._loads
        return {endpoint: self.of(endpoint) for endpoint in endpoints}

    def of(self, endpoint: str) -> InFlightLoad:
        """The endpoint's load, with what the siblings have sent there. Cost: O(1)."""
        own = self.own(endpoint)
        if self._siblings is None:
            return own
        others = self._siblings.of(endpoint)
        return InFlightLoad(own.requests + others.requests, own.tokens + others.tokens)

    def n_unseen(self, endpoint: str) -> int:
        """Requests in flight whose end nobody will tell."""
        account = self._accounts.get(endpoint)
        return len(account.unseen) if account is not None else 0

    def settle(self, load_of: Callable[[str], Load | None], *, now: float) -> None:
        """End unseen bookings that their endpoints' own loads leave no room for, and those that are too old.

        Args:
            load_of: endpoint -> its own load, None where it is not known.
            now: monotonic seconds.
        Cost: O(endpoints with unseen bookings), and once a new load a sort of those there.
        """
        for endpoint, account in list(self._hiding.items()):
            if (load := load_of(endpoint)) is not None:
                account.compare(load)
            account.expire(until=now - UNSEEN_S)
            if not account.unseen:
                del self._hiding[endpoint]

    def book(self, endpoint: str, *, tokens: int, now: float) -> Booking:
        """A request goes to the endpoint.

        Args:
            endpoint: its name.
            tokens: prompt tokens it is expected to compute.
            now: monotonic seconds.
        """
        account = self._accounts.get(endpoint)
        if account is None:
            account = self._accounts[endpoint] = _Account(endpoint, self._loads, self._hiding, self._siblings)
        return Booking(account, tokens, now)

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone. Bookings of it may still end; they do not touch one of the same name."""
        account = self._accounts.pop(endpoint, None)
        if account is not None:
            account.leave()
            self._loads.pop(endpoint, None)
            self._hiding.pop(endpoint, None)
