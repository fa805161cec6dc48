"""Loads that tell nothing new: those of endpoints with requests of this process alone."""

from __future__ import annotations

from collections.abc import Callable

from .in_flight import InFlight
from .scrape.target import KnownLoad


class KnownLoads:
    """What is known of endpoints without scraping them. Implements `scrape.target.Accounts`.

    Args:
        in_flight: requests sent to them.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self.max_age_s: Callable[[], float] = lambda: 0.0
        """Return the age up to which decisions accept the load of endpoints with known requests, in seconds."""

    def of(self, endpoint: str) -> KnownLoad | None:
        """Return what is known, None if decisions need every load, or if the end of a request is not seen."""
        max_age_s = self.max_age_s()
        if not max_age_s or self._in_flight.n_unseen(endpoint):
            return None
        return KnownLoad(self._in_flight.of(endpoint).requests, max_age_s)
