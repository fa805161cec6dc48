"""What this process has sent to each endpoint and not yet seen end. Exact by construction: each booking ends once."""

from __future__ import annotations

from .model import IDLE, InFlightLoad


class _Account:
    """One endpoint's load, from when it was first booked to when it is forgotten."""

    __slots__ = ("load",)

    def __init__(self) -> None:
        self.load = IDLE

    def add(self, *, requests: int, tokens: int) -> None:
        self.load = InFlightLoad(self.load.requests + requests, self.load.tokens + tokens)


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
            self._is_open = False


class InFlight:
    """Accounts by endpoint. For one event loop; no locks."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def of(self, endpoint: str) -> InFlightLoad:
        """The endpoint's load; nothing for one that was never booked. Cost: O(1), nothing is made."""
        account = self._accounts.get(endpoint)
        return account.load if account is not None else IDLE

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
