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

LOG_S = 1.0
"""Time in which changes are collected for one line of the log."""


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
        self._wanted: dict[str, Wanted] = {}
        self._has_work = asyncio.Event()
        self._refused: dict[str, bool] = {}
        """Endpoints that could not be added, and whether that was logged."""
        self._loading: dict[str, None] = {}
        self._log_timer: asyncio.TimerHandle | None = None

    @property
    def in_fleet(self) -> Mapping[str, Wanted]:
        """The discovered endpoints that the fleet has, by name; a live view."""
        return self._roster.wanted

    @property
    def is_loading(self) -> bool:
        """Whether an endpoint waits for its state from a snapshot."""
        return bool(self._loading)

    def change(self, changes: Mapping[str, Wanted | None]) -> None:
        """Add, move, relabel and remove endpoints as they changed; None for those that are gone.

        New endpoints come first, so that requests find one when others replace all. Endpoints with a snapshot are left to
        `run`, since loading takes time. So are endpoints that are refused because their name is taken or sockets are short.

        Cost: O(changes).
        """
        now: dict[str, Wanted | None] = {}
        for name, wanted in changes.items():
            self._refused.pop(name, None)
            self._loading.pop(name, None)
            now[name] = wanted
            if wanted is None:
                self._wanted.pop(name, None)
                continue
            self._wanted[name] = wanted
            if not self._has_pod_of(name, wanted) and self._snapshots.has(name, wanted):
                self._loading[name] = now[name] = None
        if self._change_fleet(now) or self._loading:
            self._has_work.set()
        if self._log_timer is None:
            self._log_timer = asyncio.get_running_loop().call_later(LOG_S, self._log)
        self._on_change()

    async def run(self) -> None:
        """Free the sockets of removed endpoints, and add those that `change` left out; until cancelled."""
        self._has_work.set()  # run again after a failure, this may have left work
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self._fleet.release()
            with self._snapshots.loading():
                for name in (*self._loading, *self._refused):
                    if name in self._loading or name in self._refused:
                        self._add(name, self._wanted[name])
                        await asyncio.sleep(0)  # let health checks run
            if self._refused:
                await asyncio.sleep(RETRY_S)
                self._has_work.set()

    def _change_fleet(self, changes: Mapping[str, Wanted | None]) -> bool:
        """Bring the fleet to the changes; return whether work is left for `run`."""
        try:
            return bool(self._roster.change(changes).before)
        except ConfigRefusedError:
            # `run` adds them one by one, after it has freed the sockets of removed endpoints
            new = [name for name, each in changes.items() if each and not self._has_pod_of(name, each)]
            self._refused |= dict.fromkeys(new, False)
            self._roster.change({**changes, **dict.fromkeys(new)})
            return True

    def _add(self, name: str, wanted: Wanted) -> None:
        saved = self._snapshots.take(name, wanted)
        self._loading.pop(name, None)
        try:
            self._roster.change({name: wanted}, saved={name: saved} if saved else None)
        except ConfigRefusedError as error:
            level = logging.DEBUG if self._refused.get(name) else logging.WARNING
            log.log(level, "a discovered endpoint is left out: %s", error)
            self._refused[name] = True
        else:
            self._refused.pop(name, None)

    def _has_pod_of(self, name: str, wanted: Wanted) -> bool:
        """Return whether the fleet has the endpoint, of the same pod at the same addresses."""
        known = self._roster.wanted.get(name)
        return known is not None and (known.uid, known.addresses) == (wanted.uid, wanted.addresses)

    def _log(self) -> None:
        self._log_timer = None
        log.info("the cluster has %d endpoint(s)", len(self._wanted))
