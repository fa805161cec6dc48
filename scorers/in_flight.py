"""What was sent to each endpoint and did not yet end. Exact for this process: each booking ends once.

Where the gateway hides an answer, its end is not seen. Such a booking goes on unseen, until the endpoint's own load tells
that so many requests cannot be there any more, or until it is too old.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from .model import IDLE, InFlightLoad, Load

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
    """One endpoint's load, from when it was first booked to when it is forgotten."""

    __slots__ = ("_endpoint", "compared_at", "load", "siblings", "unseen")

    def __init__(self, endpoint: str, siblings: Siblings | None) -> None:
        self.load = IDLE
        self.unseen: dict[Booking, None] = {}
        self.compared_at = -math.inf
        self.siblings = siblings
        self._endpoint = endpoint

    def add(self, *, requests: int, tokens: int) -> None:
        self.load = InFlightLoad(self.load.requests + requests, self.load.tokens + tokens)
        if self.siblings is not None:
            self.siblings.tell(self._endpoint, self.load)

    def compare(self, load: Load) -> None:
        """End unseen bookings that the endpoint's own counts leave no room for, the oldest first."""
        if load.updated_at <= self.compared_at:
            return
        self.compared_at = load.updated_at
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
        account.add(requests=1, tokens=tokens)

    def begun(self) -> None:
        """The answer began: the prompt is computed. Further calls change nothing."""
        self._account.add(requests=0, tokens=-self._tokens)
        self._tokens = 0

    def ended(self) -> None:
        """The answer ended, or will not come. Further calls change nothing."""
        self.begun()
        if self._is_open:
            self._account.add(requests=-1, tokens=0)
            self._account.unseen.pop(self, None)
            self._is_open = False

    def unseen(self) -> None:
        """Nobody will tell how the request goes on. Nothing happens to one that has ended."""
        if self._is_open:
            self._account.unseen[self] = None


class InFlight:
    """Accounts by endpoint. For one event loop; no locks.

    Args:
        siblings: who else sends requests there; None for nobody.
    """

    def __init__(self, siblings: Siblings | None = None) -> None:
        self._accounts: dict[str, _Account] = {}
        self._siblings = siblings

    def own(self, endpoint: str) -> InFlightLoad:
        """What this process has sent there; nothing for an endpoint that was never booked. Cost: O(1), nothing is made."""
        account = self._accounts.get(endpoint)
        return account.load if account is not None else IDLE

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
        Cost: O(endpoints + unseen bookings), and once a new load a sort of those there.
        """
        for endpoint, account in self._accounts.items():
            if not account.unseen:
                continue
            if (load := load_of(endpoint)) is not None:
                account.compare(load)
            for booking in [each for each in account.unseen if each.at <= now - UNSEEN_S]:
                booking.ended()

    def book(self, endpoint: str, *, tokens: int, now: float) -> Booking:
        """A request goes to the endpoint.

        Args:
            endpoint: its name.
            tokens: prompt tokens it is expected to compute.
            now: monotonic seconds.
        """
        account = self._accounts.get(endpoint)
        if account is None:
            account = self._accounts[endpoint] = _Account(endpoint, self._siblings)
        return Booking(account, tokens, now)

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone. Bookings of it may still end; they do not touch one of the same name."""
        account = self._accounts.pop(endpoint, None)
        if account is not None and account.siblings is not None:
            account.siblings.tell(endpoint, IDLE)
            account.siblings = None
