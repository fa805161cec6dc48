"""One bound socket that engines connect to, over real sockets: senders, late joins, losses, strangers."""

from __future__ import annotations

import logging
import socket
from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from kvatlas.events.bound import BoundPublisher
from kvatlas.events.errors import SocketLimitError, SubscriptionError
from kvatlas.events.limits import StreamLimits
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.position import StreamPosition
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.events.subscription import Subscription
from kvatlas.sim.held_port import HeldPort
from support.publishing import QUICK, RecordingSink, frame, frames
from support.recording import Frame, Player, player, send
from support.waiting import until

AFTER_TWO = StreamPosition(next_seq=2, stamps=array("d", [1.0, 2.0]), newest_stamp=2.0)
"""Behind the first two of `frames`."""

TOPIC_A, TOPIC_B = "kv@10.0.0.1:8000@org/model@v2", "kv@engine-b@org/model@v2"
SERVING = {"engine-a": "10.0.0.1:8000", "engine-b": "10.0.0.2:8000", "e": "10.0.0.3:8000"}


@dataclass
class BoundSubscriber:
    """A subscriber with a bound socket."""

    subscriber: Subscriber
    address: str

    def expect(
        self,
        name: str,
        *,
        rank: int = 0,
        replay: str | None = None,
        position: StreamPosition | None = None,
    ) -> tuple[Subscription, RecordingSink]:
        sink = RecordingSink()
        publisher = BoundPublisher(name, SERVING[name], rank)
        return self.subscriber.expect(publisher, replay, sink, position), sink


@asynccontextmanager
async def listening(
    address: str = "tcp://127.0.0.1:0", options: SubscriberOptions = QUICK
) -> AsyncGenerator[BoundSubscriber]:
    subscriber = Subscriber(options)
    try:
        yield BoundSubscriber(subscriber, subscriber.bind(address))
    finally:
        await subscriber.close()


async def publish_subscribed(playing: Player, one: Frame, sink: RecordingSink) -> None:
    """Publish one message, exactly once, as soon as it cannot be lost, and wait until it arrives."""
    n_before = len(sink.numbers)
    await until(lambda: playing.n_subscribed)
    await send(playing.pub, one.parts)
    await until(lambda: len(sink.numbers) > n_before)


async def test_engines_are_distinguished_by_topic_each_with_its_own_sequence() -> None:
    async with listening() as bound, player(connect=bound.address) as a, player(connect=bound.address) as b:
        (first, notes_a), (second, notes_b) = bound.expect("engine-a"), bound.expect("engine-b")
        await publish_subscribed(a, frame(0, topic=TOPIC_A), notes_a)
        await publish_subscribed(b, frame(0, topic=TOPIC_B), notes_b)
        await a.publish(*frames(1, 2, 3, topic=TOPIC_A))
        await b.publish(*frames(1, topic=TOPIC_B))
        await until(lambda: notes_a.numbers == [0, 1, 2, 3] and notes_b.numbers == [0, 1])
        assert first.trust is second.trust is Trust.LIVE
        assert notes_a.resets == notes_b.resets == []
        assert bound.subscriber.unrouted == {}


async def test_late_join_fetches_the_whole_history_before_any_new_message() -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        await playing.publish(*frames(*range(300), topic=TOPIC_A))
        subscription, sink = bound.expect("engine-a", replay=playing.replay)
        await until(lambda: len(sink.numbers) == 300 and subscription.trust is Trust.LIVE)
        await playing.publish(*frames(300, 301, topic=TOPIC_A))
        await until(lambda: len(sink.numbers) == 302)
        assert sink.numbers == [*range(302)]


async def test_lost_messages_are_fetched_and_so_is_the_last_one() -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        subscription, sink = bound.expect("engine-a", replay=playing.replay)
        await playing.publish(*frames(0, 1, topic=TOPIC_A))
        playing.history += [one.parts for one in frames(2, 3, topic=TOPIC_A)]
        await playing.publish(*frames(4, topic=TOPIC_A))
        playing.history += [frame(5, topic=TOPIC_A).parts]
        await until(lambda: sink.numbers == [*range(6)])
        assert subscription.stream.counters.lost == 0


async def test_ranks_of_one_endpoint_have_their_own_streams() -> None:
    async with (
        listening() as bound,
        player(connect=bound.address) as zero,
        player(connect=bound.address) as one,
    ):
        (_, notes_0), (_, notes_1) = bound.expect("engine-a"), bound.expect("engine-a", rank=1)
        await publish_subscribed(zero, frame(0, topic=TOPIC_A), notes_0)
        await publish_subscribed(one, frame(0, topic=TOPIC_A, rank=1), notes_1)
        await zero.publish(*frames(1, 2, topic=TOPIC_A))
        await one.publish(*frames(1, topic=TOPIC_A, rank=1))
        await until(lambda: notes_0.numbers == [0, 1, 2] and notes_1.numbers == [0, 1])


async def test_only_rank_takes_batches_of_any_rank() -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        _, sink = bound.expect("engine-a")
        await publish_subscribed(playing, frame(0, topic=TOPIC_A, rank=3), sink)
        await playing.publish(*frames(1, topic=TOPIC_A, rank=None))
        await until(lambda: sink.numbers == [0, 1])


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        pytest.param((b"\x00" * 4, b"x"), "bad_frames", id="short_sequence"),
        pytest.param((), "bad_frames", id="topic_alone"),
        pytest.param((bytes(8), b"\xc1"), "not_msgpack", id="payload_no_msgpack"),
        pytest.param(frame(0, rank=7).parts[1:], "unknown_rank", id="rank_that_nobody_expects"),
        pytest.param(frame(0, rank=None).parts[1:], "unknown_rank", id="no_rank"),
    ],
)
async def test_garbage_is_counted_and_survived(parts: tuple[bytes, ...], reason: str) -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        (_, sink), (_, other) = bound.expect("engine-a"), bound.expect("engine-a", rank=1)
        await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
        await send(playing.pub, (TOPIC_A.encode(), *parts))
        await playing.publish(*frames(1, 2, topic=TOPIC_A))
        await until(lambda: sink.numbers == [0, 1, 2])
        assert sink.rejections + other.rejections == [reason]


async def test_topic_of_eight_bytes_is_not_taken_for_a_sequence_number() -> None:
    topic = "kv@e@mod"
    async with listening() as bound, player(connect=bound.address) as playing:
        _, sink = bound.expect("e")
        await publish_subscribed(playing, frame(0, topic=topic), sink)
        await send(playing.pub, (topic.encode(), frame(1).parts[2]))
        await playing.publish(*frames(1, topic=topic))
        await until(lambda: sink.numbers == [0, 1])
        assert sink.rejections == ["bad_frames"]


async def test_strangers_are_counted_by_reason_and_each_topic_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="kvatlas.events.bound")
    async with listening() as bound, player(connect=bound.address) as playing:
        _, sink = bound.expect("engine-a")
        await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
        for topic in ("kv@10.9.9.9:8000@m", "kv@10.9.9.9:8000@m", "nonsense", "kv@10.0.0.1:8001@m"):
            await playing.publish(frame(0, topic=topic))
        await send(playing.pub, [b""])
        await playing.publish(frame(1, topic=TOPIC_A))
        await until(lambda: sink.numbers == [0, 1])
        assert bound.subscriber.unrouted == {"unknown_endpoint": 3, "not_a_topic": 2}
    assert len(caplog.messages) == 4
    assert "'kv@10.9.9.9:8000@m' are ignored: no endpoint is named '10.9.9.9:8000'" in caplog.messages[0]
    assert "the known endpoints are engine-a" in caplog.messages[0]


async def test_endless_new_topics_grow_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="kvatlas.events.bound")
    async with listening() as bound, player(connect=bound.address) as playing:
        _, sink = bound.expect("engine-a")
        await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
        for number in range(600):
            await playing.publish(frame(0, topic=f"kv@stranger-{number}@" + "m" * 1000))
        await playing.publish(frame(1, topic=TOPIC_A))
        await until(lambda: sink.numbers == [0, 1])
        assert bound.subscriber.unrouted == {"unknown_endpoint": 600}
    assert len(caplog.messages) == 256
    assert "no further topic is logged" in caplog.messages[-1]
    assert max(map(len, caplog.messages)) < 500


async def test_restart_is_noticed_by_the_look_at_a_silent_engine() -> None:
    replay = HeldPort()
    async with listening() as bound:
        async with player(connect=bound.address, replay_port=replay.number) as playing:
            subscription, sink = bound.expect("engine-a", replay=playing.replay)
            await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
            await playing.publish(*frames(1, 2, topic=TOPIC_A))
            await until(lambda: sink.numbers == [0, 1, 2])
        async with player(connect=bound.address, replay_port=replay.number) as reborn:
            await until(lambda: bool(sink.resets))
            assert sink.numbers == []
            await reborn.publish(*frames(0, 1, life=1, topic=TOPIC_A))
            await until(lambda: sink.numbers == [0, 1])
            await until(lambda: subscription.trust is Trust.LIVE)


@pytest.mark.slow
async def test_engine_is_stale_until_its_next_message_when_it_stops_replying() -> None:
    async with listening() as bound:
        async with player(connect=bound.address) as playing:
            subscription, sink = bound.expect("engine-a", replay=playing.replay)
            await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
            await until(lambda: subscription.trust is Trust.LIVE)
        await until(lambda: subscription.trust is Trust.STALE)
        assert sink.numbers == [0]
        async with player(connect=bound.address) as back:
            await publish_subscribed(back, frame(1, topic=TOPIC_A), sink)
            assert subscription.trust is not Trust.STALE
        assert sink.trusts.count(Trust.STALE) == 1


@pytest.mark.parametrize(
    "replay", [None, "tcp://127.0.0.1:1"], ids=["no_replay", "replay_that_never_answered"]
)
async def test_silence_proves_nothing_when_replay_never_replied(replay: str | None) -> None:
    options = SubscriberOptions(
        recheck_s=0.01,
        idle_check_s=0.02,
        tick_s=0.01,
        limits=StreamLimits(reply_timeout_s=0.05, backoff_s=0.01),
    )
    async with listening(options=options) as bound, player(connect=bound.address) as playing:
        subscription, sink = bound.expect("engine-a", replay=replay)
        await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
        await until(lambda: replay is None or subscription.stream.counters.replay_failures >= 6)
        assert subscription.trust in (Trust.LIVE, Trust.PARTIAL)
        assert Trust.STALE not in sink.trusts


async def test_restored_engine_is_stale_then_partial_when_it_cannot_replay() -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        subscription, sink = bound.expect("engine-a", position=AFTER_TWO)
        assert subscription.trust is Trust.STALE
        await publish_subscribed(playing, frame(2, topic=TOPIC_A), sink)
        assert (subscription.trust, sink.numbers, sink.resets) == (Trust.PARTIAL, [2], [])


async def test_restored_engine_is_verified_and_completed_by_its_replay() -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        playing.history += [one.parts for one in frames(0, 1, 2, topic=TOPIC_A)]
        subscription, sink = bound.expect("engine-a", replay=playing.replay, position=AFTER_TWO)
        assert subscription.trust is Trust.STALE
        await until(lambda: subscription.trust is Trust.LIVE)
        assert (playing.asked[0], sink.numbers, sink.resets) == (1, [2], [])


async def test_nothing_arrives_after_a_stop_and_the_others_continue() -> None:
    async with listening() as bound, player(connect=bound.address) as a, player(connect=bound.address) as b:
        (first, notes_a), (_, notes_b) = bound.expect("engine-a"), bound.expect("engine-b")
        await publish_subscribed(a, frame(0, topic=TOPIC_A), notes_a)
        await publish_subscribed(b, frame(0, topic=TOPIC_B), notes_b)
        bound.subscriber.stop(first)
        await bound.subscriber.unsubscribe(first)
        await a.publish(*frames(1, topic=TOPIC_A))
        await b.publish(*frames(1, topic=TOPIC_B))
        await until(lambda: notes_b.numbers == [0, 1] and bound.subscriber.unrouted)
        assert notes_a.numbers == [0]
        assert bound.subscriber.unrouted == {"unknown_endpoint": 1}


async def test_endpoint_taken_back_starts_clean() -> None:
    async with listening() as bound, player(connect=bound.address) as playing:
        first, before = bound.expect("engine-a", replay=playing.replay)
        await until(lambda: playing.n_subscribed)  # or a replay would bring the first, and nothing the others
        await playing.publish(*frames(0, 1, topic=TOPIC_A))
        await until(lambda: before.numbers == [0, 1])
        bound.subscriber.stop(first)
        second, after = bound.expect("engine-a")
        await bound.subscriber.unsubscribe(first)
        await playing.publish(*frames(2, 3, topic=TOPIC_A))
        await until(lambda: after.numbers == [2, 3])
        assert second.trust is Trust.PARTIAL  # without replay, earlier batches are lost
        assert before.numbers == [0, 1]


async def test_ipv6_engines_connect_to_an_ipv6_address() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with listening("tcp://[::1]:0") as bound, player(connect=bound.address) as playing:
        _, sink = bound.expect("engine-a")
        await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
        assert bound.address.startswith("tcp://[::1]:")


async def test_every_interface_takes_ipv4_engines() -> None:
    async with listening("tcp://*:0") as bound:
        port = bound.address.rpartition(":")[2]
        async with player(connect=f"tcp://127.0.0.1:{port}") as playing:
            _, sink = bound.expect("engine-a")
            await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)


async def test_topic_prefix_keeps_other_topics_out() -> None:
    options = SubscriberOptions(topic_prefix="kv@")
    async with listening(options=options) as bound, player(connect=bound.address) as playing:
        _, sink = bound.expect("engine-a")
        await publish_subscribed(playing, frame(0, topic=TOPIC_A), sink)
        await playing.publish(frame(0, topic="metrics@engine-a@m"), frame(1, topic=TOPIC_A))
        await until(lambda: sink.numbers == [0, 1])
        assert bound.subscriber.unrouted == {}


async def test_address_in_use_is_named_with_its_setting() -> None:
    async with listening() as bound:
        other = Subscriber(QUICK)
        with pytest.raises(SubscriptionError) as caught:
            other.bind(bound.address)
        await other.close()
    message = str(caught.value)
    assert message.startswith(f"cannot listen for events on '{bound.address}': Address already in use")
    assert "events.bind" in message
    assert "\n" not in message


async def test_nothing_is_expected_before_an_address_is_bound() -> None:
    subscriber = Subscriber(QUICK)
    with pytest.raises(SubscriptionError, match="bind an address first"):
        subscriber.expect(BoundPublisher("engine-a", "10.0.0.1:8000", 0), None, RecordingSink())
    await subscriber.close()


@pytest.mark.parametrize("max_sockets", [1, 2], ids=["no_room_to_watch", "no_room_for_the_second"])
async def test_error_names_the_limit_when_there_are_too_many_sockets(max_sockets: int) -> None:
    subscriber = Subscriber(SubscriberOptions(max_sockets=max_sockets))
    with pytest.raises(SocketLimitError, match="ulimit -n"):  # noqa: PT012 - either may fail
        for port in (1, 2):
            subscriber.subscribe(f"tcp://127.0.0.1:{port}", None, RecordingSink())
    await subscriber.close()
