"""Requests that wait for others, so that those with equal prompts go to one endpoint."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Mapping

from ..fleet.fleet import Fleet
from ..scorers.core.bursts import Place, assigned
from ..scorers.core.model import BurstPlace
from ..scorers.core.prefix_source import BurstProducer

_Key = tuple[frozenset[tuple[str, str]], frozenset[str] | None]
"""Labels and addresses to which requests are restricted; only equally restricted ones are assigned together."""


class _Batch:
    """Requests of one window."""

    def __init__(self) -> None:
        self.prompts: list[array[int]] = []
        self.places: list[asyncio.Future[BurstPlace | None]] = []


class Bursts:
    """Collects requests and assigns those of one window together. For one event loop; no locks.

    Args:
        fleet: endpoints.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._open: dict[_Key, _Batch] = {}

    async def place(
        self,
        producer: BurstProducer,
        keys: array[int],
        *,
        subset: frozenset[str] | None,
        labels: Mapping[str, str],
    ) -> BurstPlace | None:
        """Return where a request goes after the end of its window; None for nowhere in particular.

        Args:
            producer: length of the window, and the rules.
            keys: block keys of the prompt.
            subset: as in `Fleet.candidates`.
            labels: likewise.
        """
        key = (frozenset(labels.items()), subset)
        batch = self._open.get(key)
        if (
            batch is not None
            and producer.max_requests is not None
            and len(batch.places) >= producer.max_requests
        ):
            return None
        loop = asyncio.get_running_loop()
        if batch is None:
            batch = self._open[key] = _Batch()
            loop.call_later(producer.window_s, self._seal, producer, key, labels)
        place: asyncio.Future[BurstPlace | None] = loop.create_future()
        batch.prompts.append(keys[: producer.max_blocks])
        batch.places.append(place)
        return await place

    def _seal(self, producer: BurstProducer, key: _Key, labels: Mapping[str, str]) -> None:
        batch = self._open.pop(key)
        table = self._fleet.candidates(None, now=time.monotonic(), subset=key[1], labels=labels)
        running = [0 if each != each else int(each) for each in table.running.tolist()]  # noqa: PLR0124 - NaN
        names = list(map(Place, table.names, running))
        found = assigned(batch.prompts, names, producer.rules)
        for name, keys, place in zip(found, batch.prompts, batch.places, strict=True):
            if not place.done():  # a client may have gone meanwhile
                place.set_result(BurstPlace(name, len(keys)) if name is not None else None)
