"""All that a replica shares with its siblings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...indexer.atlas import Atlas
from ...scorers.core.shared import Shared, SharedSums, SharedUses
from ..predictions import Predictions
from .bookings import Bookings
from .channel import Channel
from .picks import Picks
from .routes import Routes
from .sums import Sums
from .uses import Uses


class Knowledge:
    """The channels of one replica. It is made before the fleet, which takes `bookings` as its siblings.

    Args:
        clock: returns monotonic seconds, of the clock that decisions use.
        me: id of this replica; empty counts no concurrent picks.

    Attributes:
        bookings: requests in flight.
        picks: picks that siblings did not know.
        channels: name -> channel; complete once `follow` was called.
    """

    def __init__(self, clock: Callable[[], float], *, me: str = "") -> None:
        self.picks = Picks(me)
        self.bookings = Bookings(self.picks.made)
        self._clock, self._sums, self._uses = clock, Sums(clock), Uses(clock)
        self._fleet: Mapping[str, SharedSums] = {}
        self._lasting: dict[str, SharedUses] = {}
        self.channels: dict[str, Channel] = {
            "bookings": self.bookings.channel,
            "picks": self.picks,
            "sums": self._sums,
            "uses": self._uses,
        }

    def follow(
        self, atlas: Atlas, predictions: Predictions, fleet: Mapping[str, SharedSums] | None = None
    ) -> None:
        """Share what becomes known of endpoints from now on.

        Args:
            atlas: the index.
            predictions: open predictions.
            fleet: what is learned of endpoints, by name; None if nothing is.
        """
        self.channels["routes"] = Routes(atlas, predictions, self._clock)
        self._fleet = {f"fleet/{name}": each for name, each in (fleet or {}).items()}

    def keep(self, name: str, uses: SharedUses) -> None:
        """Share uses that no plugin remembers, whatever policy is in force; call it before `use`."""
        self._lasting[f"routing/{name}"] = uses

    def use(self, shared: Shared) -> None:
        """Share what the plugins of the policy in force know, and nothing of others."""
        self._sums.use({**self._fleet, **shared.sums})
        self._uses.use({**self._lasting, **shared.uses})
