"""Snapshots of one publisher from the request to the switch: the new state is built beside the old one, which stays in use."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from .actions import Action
from .errors import FAILED, SnapshotError, WireError
from .message import HARMLESS, Unreadable
from .model import Batch
from .recoverable import RecoverableStream
from .recovery import Recovery
from .sink import Draft, EventSink
from .snapshot_message import SnapshotReply
from .snapshot_server import SnapshotServer
from .tasks import spawn
from .turns import Turns
from .wire import MAX_PAYLOAD_BYTES, decode_batch

log = logging.getLogger(__name__)

APPLIED = "applied"
"""Outcome of a snapshot that has replaced the state; others are the reasons of a `SnapshotError`, and `FAILED` for a bug."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parts of a subscription that its `Bootstrap` uses.

    Attributes:
        stream: of the publisher.
        sink: gets the snapshots.
        turns: when to apply them.
        decode: decodes payloads.
        is_idle: whether every batch received is applied.
        do: performs actions of the stream.
    """

    stream: RecoverableStream[Batch | Unreadable]
    sink: EventSink
    turns: Turns
    decode: Callable[[bytes], Batch]
    is_idle: Callable[[], bool]
    do: Callable[[list[Action[Batch | Unreadable]]], None]


class Bootstrap:
    """Fetches a snapshot whenever the stream wants one, one at a time.

    Args:
        server: of the publisher.
        around: its subscription.
    """

    def __init__(self, server: SnapshotServer, around: Surroundings) -> None:
        self.server = server
        self._around = around
        self._recovery = Recovery(random.random)
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_holding = False
        """Whether the stream holds batches for the current snapshot."""
        self._last_outcome: str = APPLIED

    def tick(self, *, now: float) -> None:
        """Request a snapshot if one is wanted."""
        if self._task is None and self._around.stream.wants_snapshot and self._recovery.is_due(now=now):
            self._task = spawn(self._run(), "snapshot", of=self.server.address)

    def follow(self) -> None:
        """Cancel a snapshot that the stream no longer waits for: its publisher was lost, or has another life."""
        if self._task is not None and self._is_holding and not self._around.stream.awaits_snapshot:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the snapshot that is being fetched or applied."""
        task, self._task, self._is_holding = self._task, None, False
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Cancel, and wait until the sockets are closed."""
        self.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _run(self) -> None:
        stream = self._around.stream
        async with self.server.slots:
            if not stream.wants_snapshot or not self._around.is_idle():
                self._task = None  # the next tick decides anew
                return
            began, outcome = perf_counter(), FAILED
            stream.await_snapshot()
            self._is_holding = True
            try:
                await self._replace(await self.server.fetch())
                outcome = APPLIED
            except SnapshotError as error:
                outcome = error.reason
                level = logging.DEBUG if outcome == self._last_outcome else logging.WARNING
                log.log(level, "no snapshot from %s: %s", self.server.address, error)
            finally:
                self._recovery.ended(now=asyncio.get_running_loop().time())
                if self._task is asyncio.current_task():  # else it was cancelled, and another one may run
                    self._ended(outcome, perf_counter() - began)

    def _ended(self, outcome: str, seconds: float) -> None:
        """Count the outcome, and continue the stream without a snapshot if there is none."""
        self._task, self._is_holding, self._last_outcome = None, False, outcome
        self._around.sink.snapshot_ended(outcome, seconds)
        if outcome != APPLIED:
            self._around.do(self._around.stream.not_recovered())

    async def _replace(self, reply: SnapshotReply) -> None:
        """Apply the reply to a draft, and replace the present state by it.

        Raises:
            SnapshotError: `other_life`, `outdated` or `malformed`.
        """
        stream = self._around.stream
        if reply.life != stream.life:
            raise SnapshotError("other_life", "it is of another life of the publisher than its live batches")
        if not stream.follows_from(reply.next_seq):
            raise SnapshotError(
                "outdated", f"it ends before batch {reply.next_seq}, which is applied already"
            )
        draft = self._around.sink.draft()
        applying = _Applying(draft, reply, self._decode)
        self._around.turns.add(applying)
        try:
            is_whole = await applying.done
        finally:
            self._around.turns.remove(applying)
        draft.adopt()
        self._is_holding = False
        self._around.do(stream.recovered(reply.next_seq))
        if not is_whole:
            stream.damaged()

    def _decode(self, payload: bytes) -> Batch:
        if len(payload) <= MAX_PAYLOAD_BYTES:
            return self._around.decode(payload)
        return decode_batch(payload, max_bytes=self.server.limits.max_payload_bytes)


class _Applying:
    """Applies a snapshot to a draft in turns. Implements `turns.Work`.

    Attributes:
        done: completes with whether all its events were readable.
    """

    def __init__(self, draft: Draft, reply: SnapshotReply, decode: Callable[[bytes], Batch]) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._is_whole = True
        self._slices = self._apply(draft, deque(reply.payloads), decode)

    def work(self, until: float) -> bool:
        """See `Work.work`."""
        try:
            for _ in self._slices:
                if perf_counter() >= until:
                    return True
            self._end()
        except WireError as error:
            self._end(SnapshotError("malformed", f"a part of it is no batch: {error}"))
        except Exception as error:  # noqa: BLE001 - the task that waits for it reports it
            self._end(error)
        return False

    def _end(self, error: Exception | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self._is_whole)
        else:
            self.done.set_exception(error)

    def _apply(
        self, draft: Draft, payloads: deque[bytes], decode: Callable[[bytes], Batch]
    ) -> Iterator[None]:
        while payloads:
            batch = decode(payloads.popleft())
            yield
            yield from draft.apply(batch)
            self._is_whole &= HARMLESS.issuperset(batch.rejected)
