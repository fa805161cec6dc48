"""Receiving in turns over real sockets: a bounded queue, messages of too many parts, and failing consumers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NoReturn

import pytest
import zmq
import zmq.asyncio

from kvatlas.events.byte_budget import ByteBudget
from kvatlas.events.inbox import MAX_PARTS, inbox_within
from kvatlas.events.limits import ReplayLimits
from kvatlas.events.model import Batch
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.receiver import Receiver
from kvatlas.events.sockets import open_socket
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.events.turns import Turns
from kvatlas.events.wire import decode_batch
from support.hostile_engine import hostile_engine, message
from support.publishing import QUICK, RecordingSink, frame, frames
from support.recording import player
from support.waiting import until


@dataclass
class Consumer:
    """A taker that takes nothing until it is ready, and fails at one message."""

    ready: bool = True
    fails_at: bytes = b""
    taken: list[bytes] = field(default_factory=list[bytes])
    failures: list[Exception] = field(default_factory=list[Exception])
    drops: Counter[str] = field(default_factory=Counter[str])

    def take(self, frames: list[bytes]) -> None:
        if frames[0] == self.fails_at:
            raise RecursionError
        self.taken.append(frames[0])

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def dropped(self, frames: list[bytes], reason: str) -> bool:
        self.drops[reason] += 1
        return frames[0] == b"vital"

    def is_ready(self) -> bool:
        return self.ready


@asynccontextmanager
async def receiving(
    consumer: Consumer, *, max_queued_bytes: int = 1 << 20
) -> AsyncGenerator[zmq.Socket[bytes]]:
    """Yield a socket whose messages the consumer gets."""
    context, turns = zmq.asyncio.Context(), Turns()
    socket = open_socket(context, zmq.PULL, receive_hwm=0, ipv6=False)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    receiver = Receiver(socket, turns, consumer, open_inbox=inbox_within(ByteBudget(max_queued_bytes)))
    senders = zmq.Context()
    sender = senders.socket(zmq.PUSH)
    sender.connect(f"tcp://127.0.0.1:{port}")
    try:
        yield sender
    finally:
        receiver.close()
        await turns.close()
        senders.destroy(linger=0)
        context.destroy(linger=0)


async def test_messages_past_the_bound_are_dropped_while_the_consumer_is_busy() -> None:
    consumer = Consumer(ready=False)
    async with receiving(consumer, max_queued_bytes=1 << 20) as sender:
        for _ in range(40):
            sender.send(bytes(100_000))
        sender.send(b"vital")
        await until(lambda: consumer.drops["queue_full"] == 30)
        consumer.ready = True
        await until(lambda: b"vital" in consumer.taken)
    assert [len(each) for each in consumer.taken] == [100_000] * 11 + [5]


async def test_message_of_too_many_parts_is_dropped_and_the_next_is_received() -> None:
    consumer = Consumer()
    async with receiving(consumer) as sender:
        sender.send_multipart([b"long"] * 10_000)
        sender.send_multipart([b"right"] * MAX_PARTS)
        await until(lambda: consumer.taken == [b"right"])
    assert consumer.drops == {"too_many_parts": 1}


async def test_failing_message_does_not_end_the_reception() -> None:
    consumer = Consumer(fails_at=b"bad")
    async with receiving(consumer) as sender:
        for each in (b"bad", b"good", b"bad", b"better"):
            sender.send(each)
        await until(lambda: consumer.taken == [b"good", b"better"])
    assert len(consumer.failures) == 2


async def test_other_tasks_have_turns_between_many_messages() -> None:
    consumer = Consumer(ready=False)
    n_turns = 0
    async with receiving(consumer, max_queued_bytes=1 << 30) as sender:
        for _ in range(20_000):
            sender.send(b"x")
        await asyncio.sleep(0)
        consumer.ready = True
        while len(consumer.taken) < 20_000:
            n_turns += 1
            await asyncio.sleep(0)
    assert n_turns > 3


class FailingSink(RecordingSink):
    """A sink that fails in the middle of batch 1."""

    def apply(self, batch: Batch, *, live: bool) -> Iterator[None] | None:
        super().apply(batch, live=live)
        return self.fail() if self.numbers[-1] == 1 else None

    def fail(self) -> Iterator[None]:
        yield
        raise KeyError("a secret of the message")


async def test_bug_in_the_sink_costs_one_batch_and_is_logged_once_without_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink, subscriber = FailingSink(), Subscriber(QUICK)
    async with player() as playing:
        subscription = subscriber.subscribe(playing.events, playing.replay, sink)
        await until(lambda: Trust.LIVE in sink.trusts)
        await playing.publish(*frames(0, 1, 2))
        await until(lambda: sink.numbers == [0, 1, 2])
        subscription.restarted("for a second failure in the same place")
        await until(lambda: sink.rejections == ["internal_error"] * 2 and sink.numbers == [0, 1, 2])
        await until(lambda: subscription.trust is Trust.PARTIAL)
    await subscriber.close()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "KeyError in fail (" in line
    assert "secret" not in line


def failing_decoder(payload: bytes) -> Batch:
    """Decode all but one batch."""
    if payload == frame(1).parts[2]:
        fail()
    return decode_batch(payload)


def fail() -> NoReturn:
    raise RecursionError


async def test_bug_in_the_decoder_costs_one_batch() -> None:
    options = SubscriberOptions(
        recheck_s=QUICK.recheck_s, tick_s=QUICK.tick_s, limits=QUICK.limits, decode=failing_decoder
    )
    sink, subscriber = RecordingSink(), Subscriber(options)
    async with player() as playing:
        subscriber.subscribe(playing.events, playing.replay, sink)
        await until(lambda: Trust.LIVE in sink.trusts)
        await playing.publish(*frames(0, 1, 2, 3))
        await until(lambda: sink.numbers == [0, 2, 3])
    await subscriber.close()
    assert set(sink.rejections) == {"internal_error"}


class WaitingSink(RecordingSink):
    """A sink that is not done with its first batch until a reply was broken off."""

    def apply(self, batch: Batch, *, live: bool) -> Iterator[None] | None:
        super().apply(batch, live=live)
        return self.wait() if self.numbers == [0] else None

    def wait(self) -> Iterator[None]:
        while "replays_full" not in self.rejections:
            yield


async def test_reply_is_broken_off_and_goes_on_later_if_it_takes_too_much_memory() -> None:
    history = [message(seq, n_bytes=100_000) for seq in range(100)]
    options = SubscriberOptions(tick_s=QUICK.tick_s, replay_limits=ReplayLimits(max_queued_bytes=1 << 20))
    sink, subscriber = WaitingSink(), Subscriber(options)
    with hostile_engine(lambda start: iter(history[start:])) as engine:
        subscription = subscriber.subscribe(engine.events, engine.replay, sink)
        await until(lambda: subscription.trust is Trust.LIVE and len(sink.numbers) == 100)
        assert sink.numbers == list(range(100))
        assert engine.asked[0] == 0 < engine.asked[1]
        assert subscription.stream.counters.replays == 1
    await subscriber.close()


async def test_reply_past_its_time_is_cut_off() -> None:
    options = SubscriberOptions(tick_s=QUICK.tick_s, replay_limits=ReplayLimits(timeout_s=0.5))
    sink, subscriber = RecordingSink(), Subscriber(options)
    with hostile_engine(lambda start: (message(seq) for seq in count(start))) as engine:
        subscription = subscriber.subscribe(engine.events, engine.replay, sink)
        await until(lambda: subscription.trust is Trust.PARTIAL)
        assert subscription.stream.counters.replay_cuts > 0
    await subscriber.close()
