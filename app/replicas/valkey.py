"""Publish and subscribe on a Valkey or Redis server that is there already; nothing is stored on it.

All replicas of a pool use two kinds of sharded channels: one for all, and one for each replica. Their names share a hash tag, so
that in a cluster one shard carries a pool, and messages do not travel to the others. A message that was published while this
process was not subscribed is lost, which the core notices by its numbers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress

from redis.asyncio.connection import Connection

from ...configs.address import HostPort
from ...configs.replicas import ValkeyConfig
from ...fleet.replicas.envelope import sender_of
from ...fleet.replicas.replica import Outgoing
from ..errors import ReplicaError
from .outage import STEADY_S, Outage
from .transport import LAST_WORDS_S, OnMessage, SendQueue, Traffic
from .valkey_problems import ConnectionProblem, problem_of
from .valkey_server import LOCATE_S, TIMEOUT_S, UNREACHED, ValkeyServer, call, check_role, reply_of

log = logging.getLogger(__name__)

PROBE_S = 0.5
"""Silence after which an empty message to itself shows that both connections work."""

_TOLD = "it is told again which server to use"

_BATCH_BYTES = 1 << 20
"""Messages that are sent together, before their replies are read."""


class Valkey:
    """Implements `Transport`.

    Args:
        config: the server.
        pool: name of the pool, a part of the channels' names.
        replica: id of this replica.
        on_message: takes the messages of the others.

    Attributes:
        is_connected: whether messages are carried now.
    """

    def __init__(self, config: ValkeyConfig, *, pool: str, replica: str, on_message: OnMessage) -> None:
        self._base = f"{config.prefix}{{{pool.replace('}', ')')}}}:"
        self._replica, self._on_message = replica, on_message
        self._all, self._own = (f"{self._base}{name}".encode() for name in ("all", replica))
        self._config = config
        self._server = ValkeyServer(config, channel=self._own.decode())
        self.traffic = Traffic()
        self._queue = SendQueue(self.traffic)
        self._has_more, self._is_written = asyncio.Event(), asyncio.Event()
        self._outage = Outage()
        self._n_untold = 0
        """Times in a row that nobody told which server to use, while one was connected to."""
        self.is_connected = False

    async def run(self) -> None:
        """See `Transport.run`."""
        while True:
            try:
                await self._connection()
            except UNREACHED as error:
                self._lost(error)
                self._server.failed()
            await asyncio.sleep(self._outage.pause_s() * random.uniform(0.5, 1.5))

    async def close(self) -> None:
        """See `Transport.close`; `run` has sent the last messages."""

    def send(self, outgoing: Outgoing) -> None:
        """See `Transport.send`."""
        if not self.is_connected:
            self.traffic.dropped["not_connected"] += 1
            return
        self._queue.push(
            self._all if outgoing.to is None else f"{self._base}{outgoing.to}".encode(), outgoing.payload
        )
        self._has_more.set()

    async def _connection(self) -> None:
        """Carry messages until a connection breaks, or another server is the one to use."""
        place = await self._server.locate()
        async with self._server.connected(place) as reader, self._server.connected(place) as writer:
            await check_role(writer, place)
            _confirm(await call(reader, "SSUBSCRIBE", self._all, self._own))
            _confirm(await reply_of(reader))
            await call(writer, "SPUBLISH", self._own, b"")  # whose right may be missing
            self._found(place)
            lasted = asyncio.get_running_loop().call_later(STEADY_S, self._lasted, place)
            try:
                await self._carry(reader, writer, place)
            finally:
                lasted.cancel()
                self.is_connected = False
                self._queue.clear()

    async def _carry(self, reader: Connection, writer: Connection, place: HostPort) -> None:
        """Carry messages until one of the connections breaks; raise its error."""
        work = [self._read(reader), self._write(writer, place)]
        if self._server.may_move:
            work.append(self._watch(place))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._written(), LAST_WORDS_S)
            raise
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _read(self, reader: Connection) -> None:
        while True:
            reply = await reply_of(reader)
            if len(reply) == 3 and reply[0] == b"smessage" and isinstance(payload := reply[2], bytes):
                self._take(payload)
            elif reply and reply[0] == b"sunsubscribe":
                raise ReplicaError("the channel has moved to another server")

    def _take(self, payload: bytes) -> None:
        if payload and sender_of(payload) != self._replica:
            self.traffic.count_received(len(payload))
            self._on_message(payload)

    async def _write(self, writer: Connection, place: HostPort) -> None:
        clock = asyncio.get_running_loop().time
        checked_at = clock()
        while True:
            try:
                async with asyncio.timeout(PROBE_S):
                    await self._has_more.wait()
            except TimeoutError:
                self._queue.push(self._own, b"")
            await self._write_waiting(writer)
            if clock() - checked_at >= LOCATE_S:  # one that becomes a replica keeps its connections
                await check_role(writer, place)
                checked_at = clock()

    async def _write_waiting(self, writer: Connection) -> None:
        while self._queue:
            batch, n_bytes = list[tuple[str, bytes, bytes]](), 0
            while self._queue and n_bytes < _BATCH_BYTES:
                channel, payload = self._queue.pop()
                batch.append(("SPUBLISH", channel, payload))
                n_bytes += len(payload)
            async with asyncio.timeout(TIMEOUT_S):
                await writer.send_packed_command(writer.pack_commands(batch))
            for _, _, payload in batch:
                await reply_of(writer)
                if payload:
                    self.traffic.count_sent(len(payload))
        self._has_more.clear()
        self._is_written.set()

    async def _written(self) -> None:
        """Return once all that was queued is written."""
        self._is_written.clear()
        self._has_more.set()
        await self._is_written.wait()

    async def _watch(self, place: HostPort) -> None:
        self._n_untold = 0
        while True:
            await asyncio.sleep(LOCATE_S)
            try:
                now = await self._server.moved(place, self._told)
            except UNREACHED as error:  # the connection itself shows whether its server is there
                self._untold(problem_of(error, self._config), place)
            else:
                raise ReplicaError(f"the server to use is {now}, no more {place}")

    def _told(self) -> None:
        if self._n_untold > 1:
            self.traffic.problem = ""
            if self._outage.says(_TOLD):
                log.info("replicas: %s", _TOLD)
        self._n_untold = 0

    def _untold(self, problem: ConnectionProblem, place: HostPort) -> None:
        self._n_untold += 1
        if self._n_untold == 1:  # one connection that broke; all are asked before the next one counts
            return
        self.traffic.failures[problem.kind] += 1
        who = "node of the cluster" if self._config.cluster else "Sentinel"
        self._say(
            f"no {who} names the server to use: {problem.text}; {place} still carries messages, "
            "but if it fails, the next server is not found until one does"
        )

    def _found(self, place: HostPort) -> None:
        self.is_connected = True
        self._has_more.clear()
        self.traffic.connections += 1
        self.traffic.problem = ""
        if self._outage.is_over:
            log.info("replicas: connected to the server at %s", place)

    def _lasted(self, place: HostPort) -> None:
        """Log what connections that break at once are not to log again and again."""
        if not self._outage.is_over:
            log.info("replicas: connected to the server at %s", place)
        self._outage.end()

    def _lost(self, error: Exception) -> None:
        problem = problem_of(error, self._config)
        self.traffic.failures[problem.kind] += 1
        self._say(problem.text, "; it is tried again, and each replica decides by what it knows")

    def _say(self, problem: str, then: str = "") -> None:
        self.traffic.problem = problem
        if self._outage.says(problem):
            log.warning("replicas: %s%s", problem, then)


def _confirm(reply: Sequence[object]) -> None:
    if not reply or reply[0] != b"ssubscribe":
        raise ReplicaError(f"expected the confirmation of a subscription, found {reply!r:.100}")
