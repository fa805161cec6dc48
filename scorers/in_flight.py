"""What this process has sent to each endpoint and not yet seen end. Exact by construction: each booking ends once.

Where the gateway hides an answer, its end is not seen. Such a booking goes on unseen, until the endpoint's own load tells
that so many requests cannot be there any more, or until it is too old.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .model import IDLE, InFlightLoad, Load

SETTLE_S = 0.5
"""Age from which a request is taken to show in its endpoint's load: it has to arrive there and to be tokenized first."""

UNSEEN_S = 60.0
"""Age at which an unseen booking ends whatever the load, which may not be known at all. Few answers take longer."""


class _Account:
    """One endpoint's load, from when it was first booked to when it is forgotten."""

    __slots__ = ("compared_at", "load", "unseen")

    def __init__(self) -> None:
        self.load = IDLE
        self.unseen: dict[Booking, None] = {}
        self.compared_at = -math.inf

    def add(self, *, requests: int, tokens: int) -> None:
        self.load = InFlightLoad(self.load.requests + requests, self.load.tokens + tokens)

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
    """Accounts by endpoint. For one event loop; no locks."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def of(self, endpoint: str) -> InFlightLoad:
        """The endpoint's load; nothing for one that was never booked. Cost: O(1), nothing is made."""
        account = self._accounts.get(endpoint)
        return account.load if account is not None else IDLE

    def n_unseen(self, endpoint: str) -> int:
        """Requests in flight whose end nobody will tell."""
        account = self._accounts.get(endpoint)
        return len(account.unseen) if account is not None else 0

    def settle(self, load_of: Callable[[str], Load | None], *, now: float) -> None:
        """End unseen bookings that their endpoints' own loads leave no room for, and those that are too old.

        Args:
            load_of: endpoint -> its own load, None where it is not known.
            now: monotonic seconds.
        Cost: O(endpoints), and once a new load O(unseen bookings there).
        """
        for endpoint, account in self._accounts.items():
            if account.unseen and (load := load_of(endpoint)) is not None:
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
        account = self._accounts.setdefault(endpoint, _Account())
        return Booking(account, tokens, now)

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone. Bookings of it may still end; they do not touch one of the same name."""
        self._accounts.pop(endpoint, None)
