"""The discovered endpoints in the fleet: added, moved and removed as the cluster changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ..errors import ConfigRefusedError
from ..fleet import Fleet
from ..roster import Roster, Wanted
from ..snapshots import Snapshots

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Time between two attempts to add endpoints that were refused; a freed socket counts as used for a moment."""


class DiscoveredEndpoints:
    """Keeps the discovered endpoints in the fleet.

    Args:
        fleet: gets the endpoints.
        snapshots: state to restore for them.
        on_change: called after each change.
    """

    def __init__(self, fleet: Fleet, snapshots: Snapshots, *, on_change: Callable[[], None]) -> None:
        self._fleet, self._roster, self._snapshots = fleet, Roster(fleet), snapshots
        self._on_change = on_change
        self._wanted: Mapping[str, Wanted] = {}
        self._has_work = asyncio.Event()
        self._refused: set[str] = set()
        self._loading: set[str] = set()

    @property
    def in_fleet(self) -> Mapping[str, Wanted]:
        """The discovered endpoints that the fleet has, by name; a live view."""
        return self._roster.wanted

    @property
    def is_loading(self) -> bool:
        """Whether an endpoint waits for its state from a snapshot."""
        return bool(self._loading)

    def bring_to(self, wanted: Mapping[str, Wanted]) -> None:
        """Add, move, relabel and remove endpoints until the fleet has those of `wanted`.

        Removals and moves come first, so that nothing of a former pod stays. Endpoints with a snapshot are left to `run`,
        since loading takes time. So are endpoints that are refused because their name is taken or sockets are short.
        """
        known = self._roster.wanted
        stays = {name: each for name, each in wanted.items() if _is_same_pod(known.get(name), each)}
        self._loading = {
            name for name, each in wanted.items() if name not in stays and self._snapshots.has(name, each)
        }
        if self._roster.bring_to(stays).before or self._loading:
            self._has_work.set()
        try:
            self._roster.bring_to({name: each for name, each in wanted.items() if name not in self._loading})
        except ConfigRefusedError:
            self._has_work.set()  # `run` adds them one by one, after it has freed the sockets of removed endpoints
        self._wanted = wanted
        self._refused &= wanted.keys()
        log.info("the cluster has %d endpoint(s)", len(wanted))
        self._on_change()

    async def run(self) -> None:
        """Free the sockets of removed endpoints, and add those that `bring_to` left out; until cancelled."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self._fleet.release()
            with self._snapshots.loading():
                for name, wanted in self._wanted.items():
                    if name not in self._roster.wanted and self._wanted.get(name) is wanted:
                        self._add(name, wanted)
                        await asyncio.sleep(0)  # let health checks run
            if self._roster.wanted.keys() != self._wanted.keys():
                await asyncio.sleep(RETRY_S)
                self._has_work.set()

    def _add(self, name: str, wanted: Wanted) -> None:
        saved = self._snapshots.take(name, wanted)
        self._loading.discard(name)
        try:
            self._roster.bring_to(
                {**self._roster.wanted, name: wanted}, saved={name: saved} if saved else None
            )
        except ConfigRefusedError as error:
            level = logging.DEBUG if name in self._refused else logging.WARNING
            log.log(level, "a discovered endpoint is left out: %s", error)
            self._refused.add(name)
        else:
            self._refused.discard(name)


def _is_same_pod(known: Wanted | None, wanted: Wanted) -> bool:
    return known is not None and (known.uid, known.addresses) == (wanted.uid, wanted.addresses)
