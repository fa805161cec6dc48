"""The subscriber over real sockets: late joins, losses, restarts, garbage, servers that do not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from kvatlas.events.errors import SubscriptionError
from kvatlas.events.line_limit import MAX_LINES
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.events.subscription import Subscription
from kvatlas.sim.held_port import HeldPort
from support.publishing import QUICK, RecordingSink, frame, frames
from support.recording import Frame, Player, player, send
from support.waiting import until


@asynccontextmanager
async def following(
    playing: Player, *, replay: str | None = "", options: SubscriberOptions = QUICK
) -> AsyncGenerator[tuple[Subscription, RecordingSink]]:
    subscriber, sink = Subscriber(options), RecordingSink()
    address = playing.replay if replay == "" else replay
    subscription = subscriber.subscribe(playing.events, address, sink)
    try:
        yield subscription, sink
    finally:
        await subscriber.close()


async def test_late_join_fetches_the_whole_history() -> None:
    async with player() as playing:
        await playing.publish(*frames(*range(500)))
        async with following(playing) as (subscription, sink):
            await until(lambda: len(sink.numbers) == 500)
            await playing.publish(*frames(500, 501))
            await until(lambda: len(sink.numbers) == 502)
            assert sink.numbers == [*range(502)]
            await until(lambda: subscription.trust is Trust.LIVE)  # at the end of the replay


async def test_one_live_message_in_five_lost_leaves_nothing_missing() -> None:
    rng = random.Random(7)
    async with player() as playing, following(playing) as (subscription, sink):
        await until(lambda: Trust.LIVE in sink.trusts)
        for one in frames(*range(400)):
            if rng.random() < 0.2:
                playing.history.append(one.parts)  # published, but lost
            else:
                await playing.publish(one)
        await until(lambda: len(sink.numbers) == 400)
        assert sink.numbers == [*range(400)]
        await until(lambda: subscription.stream.trust is Trust.LIVE)
        assert subscription.stream.counters.lost == 0


async def test_loss_of_the_last_message_is_found_while_the_engine_is_idle() -> None:
    async with player() as playing, following(playing) as (_, sink):
        await until(lambda: Trust.LIVE in sink.trusts)
        await playing.publish(*frames(0, 1))
        playing.history.append(frame(2).parts)
        await until(lambda: sink.numbers == [0, 1, 2])


async def test_restart_on_the_same_ports_is_noticed_before_the_first_new_event() -> None:
    port, replay_port = HeldPort(), HeldPort()
    async with (
        player(port=port.number, replay_port=replay_port.number) as playing,
        following(playing) as (subscription, sink),
    ):
        await playing.publish(*frames(0, 1, 2))
        await until(lambda: sink.numbers == [0, 1, 2])
        playing.close()
        await until(lambda: subscription.stream.trust is Trust.STALE)
        async with player(port=port.number, replay_port=replay_port.number) as reborn:
            await until(lambda: bool(sink.resets))
            assert sink.numbers == []
            await reborn.publish(*frames(0, life=1))
            await until(lambda: sink.numbers == [0])


async def test_truncated_history_is_applied_from_its_start_and_marked() -> None:
    async with player() as playing:
        await playing.publish(*frames(*range(50)))
        del playing.history[:20]
        async with following(playing) as (subscription, sink):
            await until(lambda: subscription.trust is Trust.PARTIAL)  # the sink has all that is known
            assert sink.numbers == [*range(20, 50)]
            await playing.publish(*frames(50))
            await until(lambda: sink.numbers[-1] == 50)


async def test_replay_server_that_never_answers_does_not_stop_live_events() -> None:
    async with (
        player() as playing,
        following(playing, replay="tcp://127.0.0.1:1") as (subscription, sink),
    ):
        await until(lambda: subscription.stream.counters.replay_failures >= 3)
        await playing.publish(*frames(5, 6, 7))
        await until(lambda: sink.numbers == [5, 6, 7])
        assert subscription.stream.trust is Trust.PARTIAL


async def test_publisher_without_replay_is_followed_from_its_next_batch() -> None:
    async with player() as playing, following(playing, replay=None) as (subscription, sink):
        playing_on = asyncio.create_task(keep_publishing(playing))
        await until(lambda: len(sink.numbers) >= 3)
        playing_on.cancel()
        assert sink.numbers == [*range(sink.numbers[0], sink.numbers[-1] + 1)]
        assert subscription.stream.trust in (Trust.LIVE, Trust.PARTIAL)


async def keep_publishing(playing: Player) -> None:
    """Publish without end: without replay, nothing signals that the subscription is in place."""
    seq = 0
    while True:
        await playing.publish(frame(seq))
        seq += 1
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        pytest.param((b"t", b"\x00" * 4, b"x"), "bad_frames", id="short_sequence"),
        pytest.param((b"alone",), "bad_frames", id="one_part"),
        pytest.param((b"t", b"\xff" * 8, frame(0).parts[2]), "bad_frames", id="sequence_that_ends_a_replay"),
        pytest.param((b"t", b"\x80" + bytes(7), frame(0).parts[2]), "bad_frames", id="impossible_sequence"),
        pytest.param((b"t", b"\0\0\x7f" + bytes(5), b"\xc1"), "not_msgpack", id="wild_sequence"),
        pytest.param((b"t", *(b"x" for _ in range(100_000))), "too_many_parts", id="many_parts"),
        pytest.param((b"t", bytes(8), b"\xc1"), "not_msgpack", id="payload_no_msgpack"),
        pytest.param((b"t", bytes(8), b"\x05"), "not_a_batch", id="payload_no_batch"),
    ],
)
async def test_garbage_is_counted_and_survived(parts: tuple[bytes, ...], reason: str) -> None:
    async with player() as playing, following(playing) as (_, sink):
        await until(lambda: Trust.LIVE in sink.trusts)
        await send(playing.pub, parts)
        await playing.publish(*frames(1, 2))
        await until(lambda: sink.numbers == [1, 2])
        assert sink.rejections == [reason]


@pytest.mark.parametrize(
    ("event", "trust"),
    [(["BlockStored", "what?"], Trust.PARTIAL), (["BlockTouched", [1]], Trust.LIVE)],
    ids=["broken_event", "event_of_a_new_kind"],
)
async def test_event_that_cannot_be_read_lowers_trust_unless_it_is_of_a_new_kind(
    event: list[object], trust: Trust
) -> None:
    async with player() as playing, following(playing) as (subscription, sink):
        await until(lambda: Trust.LIVE in sink.trusts)
        odd = msgspec.msgpack.encode([1.0, [event, ["BlockRemoved", [0]]], 0])
        await playing.publish(Frame(0.0, "", (b"kv@e@m", bytes(8), odd)), *frames(1))
        await until(lambda: sink.numbers == [0, 1])
        assert (len(sink.rejections), subscription.trust) == (1, trust)


async def test_nothing_arrives_after_unsubscribe() -> None:
    subscriber, sink = Subscriber(QUICK), RecordingSink()
    async with player() as playing:
        subscription = subscriber.subscribe(playing.events, playing.replay, sink)
        await until(lambda: Trust.LIVE in sink.trusts)
        await subscriber.unsubscribe(subscription)
        await playing.publish(*frames(0, 1))
        await subscriber.close()
    assert sink.numbers == []


async def test_address_that_zmq_cannot_use_is_named() -> None:
    subscriber = Subscriber(QUICK)
    with pytest.raises(SubscriptionError, match=r"'nonsense'.*tcp://HOST:PORT"):
        subscriber.subscribe("nonsense", None, RecordingSink())
    await subscriber.close()


async def test_replays_that_fail_again_and_again_are_logged_a_few_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with player() as playing, following(playing, replay="tcp://nowhere") as (subscription, _):

        def has_failed_often() -> bool:
            subscription.connected()  # requests another one
            return subscription.stream.counters.replays > 5 * MAX_LINES

        await until(has_failed_often, what="replays")
        lines = [each for each in caplog.messages if "cannot request a replay" in each]
        assert len(lines) == MAX_LINES
        assert "once a minute from now on" in lines[-1]
