"""Warm starts: the snapshot of a sibling at the start, and the own one for siblings that start later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator

from prometheus_client.metrics_core import Metric

from ...fleet.families import counter, gauge
from ...fleet.replicas.warm_giver import Letters
from ...fleet.replicas.warm_letters import Stage
from ...fleet.replicas.warm_start import WarmStart
from ...fleet.replicas.warm_taker import Taker
from ...fleet.snapshots import Snapshots
from ...indexer.errors import SnapshotError
from ...indexer.snapshot import Snapshot

log = logging.getLogger(__name__)

LETTERS = "snapshot"
"""Name of the letters about snapshots."""

TURN_S = 0.02
"""Longest time between two looks at what is due while a snapshot is on its way."""


class WarmStarts:
    """Takes and gives snapshots. Implements `channel.Letters`.

    Args:
        snapshots: of this process.
        replica: id of this replica.
        siblings: returns the ids of the siblings that live.
        post: sends a letter to a sibling.
        clock: monotonic nanoseconds.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        *,
        replica: str,
        siblings: Callable[[], Collection[str]],
        post: Callable[[str, bytes], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._snapshots, self._replica, self._siblings = snapshots, replica, siblings
        self._post, self._clock = post, clock
        self._warm = WarmStart()
        self._has_come = asyncio.Event()
        self._n_taken_bytes = 0
        self._taken_s = 0.0

    def received(self, sender: str, payload: bytes, now_ns: int) -> Letters:
        """See `channel.Letters.received`."""
        letters = self._warm.received(sender, payload, now_ns)
        self._has_come.set()
        return letters

    async def take(self) -> tuple[str, Snapshot] | None:
        """Return the snapshot of a sibling with its id; None if there is none to have. To be called once, at the start."""
        begin = self._clock()
        taker = self._warm.taker = Taker(self._replica, self._siblings, now_ns=begin)
        while True:
            while not taker.is_done:
                self._send(taker.tick(self._clock()))
                await self._turn()
            if (taken := taker.taken) is None:
                log.info("no snapshot of another replica: %s", taker.why)
                break
            giver, pieces = taken
            try:
                snapshot = await self._snapshots.decode(pieces)
            except SnapshotError as error:
                log.warning("the snapshot of replica %s is not used (%s): %s", giver, error.reason, error)
                taker.refuse(str(error))
                continue
            self._n_taken_bytes = sum(map(len, pieces))
            self._taken_s = (self._clock() - begin) / 1e9
            log.info(
                "replica %s gave its snapshot: %d bytes in %.2f s", giver, self._n_taken_bytes, self._taken_s
            )
            self._warm.taker = None
            self._warm.giver.stage = Stage.FILLING
            return giver, snapshot
        self._warm.taker = None
        self._warm.giver.stage = Stage.FILLING
        return None

    def ready(self) -> None:
        """Give snapshots from now on: the engines' history is known."""
        self._warm.giver.stage = Stage.READY

    async def give(self) -> None:
        """Give snapshots to siblings that ask, one after the other, until cancelled."""
        giver = self._warm.giver
        while True:
            while (transfer := giver.taker) is None:
                self._has_come.clear()
                await self._has_come.wait()
            begin = time.monotonic()
            try:
                await self._give(transfer)
            except Exception:
                self._send(giver.abandon())  # else this replica would be busy with it for ever
                raise
            log.info("gave a snapshot to replica %s in %.2f s", transfer[0], time.monotonic() - begin)

    async def _give(self, transfer: tuple[str, int]) -> None:
        """Make the snapshot and send it, until the transfer has ended."""
        giver = self._warm.giver
        async with contextlib.aclosing(self._snapshots.pieces(time.time(), with_tokens=False)) as pieces:
            async for piece in pieces:
                while giver.taker == transfer and not giver.has_room:
                    await self._serve()
                if giver.taker != transfer:
                    break
                self._send(giver.push(piece, self._clock()))
            else:
                self._send(giver.finish(self._clock()))
        while giver.taker == transfer:
            await self._serve()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of warm starts."""
        giver = self._warm.giver
        given = counter(
            "replica_snapshots_given", "Snapshots for replicas that started, by how it ended.", "outcome"
        )
        given.add_metric(["given"], giver.n_given)
        given.add_metric(["broken"], giver.n_broken)
        yield given
        size = gauge(
            "replica_snapshot_bytes", "Bytes of the snapshot that a sibling gave at the start, 0 without one."
        )
        size.add_metric([], self._n_taken_bytes)
        yield size
        taken = gauge(
            "replica_snapshot_seconds", "Seconds until that snapshot was here and checked, 0 without one."
        )
        taken.add_metric([], self._taken_s)
        yield taken

    async def _serve(self) -> None:
        """Wait for a letter or a moment, and send what is due."""
        await self._turn()
        self._send(self._warm.giver.tick(self._clock()))

    async def _turn(self) -> None:
        self._has_come.clear()
        with contextlib.suppress(TimeoutError):
            # not `wait_for`, which before Python 3.12 may lose a cancellation
            async with asyncio.timeout(TURN_S):
                await self._has_come.wait()

    def _send(self, letters: Letters) -> None:
        for to, payload in letters:
            self._post(to, payload)
