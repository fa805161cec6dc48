"""Messages over real sockets: both inboxes, and ordinary messages in runs as if each had come by itself."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from random import Random

import msgspec
import pytest
import zmq
from prometheus_client import CollectorRegistry

from hostile.generators import events as generated
from kvatlas.events.inbox import MAX_PARTS, FrameInbox, OpenInbox, frame_inbox
from kvatlas.events.inboxes import open_inbox
from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.events.subscription import Subscription
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.predictions import Predictions
from kvatlas.fleet.rank import MAX_ADAPTERS, Rank
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.payloads import payload
from support.waiting import until

BLOCK = 4
INBOXES = {"python": frame_inbox, "native": open_inbox}
TIERS = [
    TierSpec("gpu", ("GPU",)),
    TierSpec("cpu", ("CPU",)),
    TierSpec("storage", ("FS",), shared=True),
    TierSpec("disk", ("DISK",), cleared_on_reset=True),
]


@pytest.fixture(params=INBOXES)
def opens(request: pytest.FixtureRequest) -> OpenInbox:
    return INBOXES[request.param]


@dataclass
class Losses:
    """Reports of an inbox."""

    failures: list[Exception] = field(default_factory=list[Exception])
    drops: Counter[str] = field(default_factory=Counter[str])

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def dropped(self, frames: list[bytes], reason: str) -> bool:  # noqa: ARG002 - a parameter of Losses
        self.drops[reason] += 1
        return False


@contextmanager
def sockets() -> Generator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Yield a socket that sends, and one that has received what it sent when it returns."""
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiver.setsockopt(zmq.RCVHWM, 0)
    receiver.bind("inproc://messages")
    sender.connect("inproc://messages")
    try:
        yield sender, receiver
    finally:
        context.destroy(linger=0)


def test_messages_keep_their_order_when_some_are_moved_to_the_queue(opens: OpenInbox) -> None:
    sent = [[b"%d" % n, bytes(n), b""] for n in range(12)]
    with sockets() as (sender, receiver):
        inbox = opens(receiver, Losses(), 1 << 20)
        for frames in sent[:6]:
            sender.send_multipart(frames)
        taken = [inbox.next()]
        inbox.collect(60)
        for frames in sent[6:]:
            sender.send_multipart(frames)
        taken += [inbox.next() for _ in range(3)]
        inbox.collect(60)
        taken += iter(inbox.next, None)
        inbox.close()
    assert taken == sent


def test_messages_past_the_bound_are_dropped_and_reported(opens: OpenInbox) -> None:
    losses = Losses()
    with sockets() as (sender, receiver):
        inbox = opens(receiver, losses, 250_000)
        for _ in range(8):
            sender.send(bytes(100_000))
        inbox.collect(60)
        sender.send(b"later")
        sizes = [len(frames[0]) for frames in iter(inbox.next, None)]
        inbox.close()
    assert sizes == [100_000] * 3 + [5]
    assert losses.drops == {"queue_full": 5}


def test_message_of_too_many_parts_is_dropped_and_reported(opens: OpenInbox) -> None:
    losses = Losses()
    with sockets() as (sender, receiver):
        inbox = opens(receiver, losses, 1 << 20)
        sender.send_multipart([b"long"] * 2500)
        sender.send_multipart([b"right"] * MAX_PARTS)
        steps = [(inbox.next(), inbox.is_skipping) for _ in range(4)]
        inbox.close()
    assert [frames for frames, _ in steps if frames] == [[b"right"] * MAX_PARTS]
    assert [steps[0], steps[-1]] == [(None, True), (None, False)]
    assert losses.drops == {"too_many_parts": 1}


def test_failing_socket_is_reported(opens: OpenInbox) -> None:
    losses = Losses()
    context = zmq.Context()
    inbox = opens(context.socket(zmq.PUSH), losses, 1 << 20)  # a socket that cannot receive
    assert inbox.next() is None
    inbox.close()
    context.destroy(linger=0)
    assert len(losses.failures) == 1


def test_nothing_comes_from_a_closed_inbox(opens: OpenInbox) -> None:
    with sockets() as (sender, receiver):
        inbox = opens(receiver, Losses(), 1 << 20)
        for _ in range(3):
            sender.send(b"x")
        inbox.collect(60)
        inbox.close()
        assert inbox.next() is None


def test_inbox_in_python_is_used_when_the_library_lacks_the_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inspect.getfile", str)  # no name of a library
    with sockets() as (_, receiver):
        assert isinstance(open_inbox(receiver, Losses(), 1), FrameInbox)


# -- runs -------------------------------------------------------------------------------------------------------------


def ignore_trust(endpoint: str, rank: int, trust: Trust) -> None:
    pass


class Follower:
    """A rank that follows a player, as in the server."""

    def __init__(self, opens: OpenInbox) -> None:
        self.atlas = Atlas(tiers=TierTable(TIERS), seed=7, core=index_core())
        self.atlas.add("e")
        self.registry = CollectorRegistry()
        self.subscriber = Subscriber(
            SubscriberOptions(open_inbox=opens, recheck_s=3600, decode=index_core().decode_batch)
        )
        self.rank = Rank(
            "e", 0, self.atlas, self.atlas.ledger("e", 0), Predictions(self.atlas, ttl_s=None),
            FleetMetrics(self.registry), ignore_trust,
        )  # fmt: skip

    @property
    def subscription(self) -> Subscription:
        assert self.rank.subscription is not None
        return self.rank.subscription

    def follow(self, address: str) -> None:
        self.rank.subscription = self.subscriber.subscribe(address, None, self.rank)

    def has_applied(self, seq: int) -> bool:
        return self.subscription.stream.last_seq == seq and not self.subscription.is_applying

    def state(self) -> dict[str, object]:
        """Return everything that messages change, but times of receipt."""
        subscription, ledger = self.subscription, self.rank.ledger
        return {
            "books": ledger.dump(now=0),
            "counters": asdict(ledger.counters),
            "pending": ledger.n_pending,
            "layout": ledger.layout(),
            "position": subscription.position(),
            "stream": subscription.stream.counters,
            "trust": subscription.trust,
            "topic": subscription.topic,
            "adapters": self.rank.adapters,
            "capacities": {tier: (each.n_clears, each.observed()) for tier, each in self.rank.gauges.items()},
            "metrics": {
                (sample.name, *sample.labels.items()): sample.value
                for family in self.registry.collect()
                for sample in family.samples
                if not sample.name.endswith(("_sum", "_bucket", "_created"))
            },
        }


class Publisher:
    """A socket that knows its subscribers, so that none misses the first message."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self._n_subscribed = 0

    def has_subscribers(self, n: int) -> bool:
        while self._socket.poll(0):
            self._n_subscribed += self._socket.recv()[0]
        return self._n_subscribed == n

    def send(self, seq: int, body: bytes) -> None:
        self._socket.send_multipart([b"kv@e@m", seq.to_bytes(8, "big"), body])

    def close(self) -> None:
        self._context.destroy(linger=0)


async def assert_same(numbered: Sequence[tuple[int, bytes]]) -> None:
    """Send messages to followers with either inbox, and compare them after the last one."""
    followers = [Follower(opens) for opens in INBOXES.values()]
    publisher = Publisher()
    for follower in followers:
        follower.follow(publisher.address)
        await until(lambda f=follower: f.subscription.stream.is_connected)  # type: ignore[misc]
    await until(lambda: publisher.has_subscribers(len(followers)))
    for seq, body in numbered:
        publisher.send(seq, body)
    for follower in followers:
        await until(lambda f=follower: f.has_applied(numbered[-1][0]))  # type: ignore[misc]
    one, other = (follower.state() for follower in followers)
    for follower in followers:
        await follower.subscriber.close()
    publisher.close()
    assert other == one


def end(seq: int) -> tuple[int, bytes]:
    """Return a message that is always read."""
    return seq, msgspec.msgpack.encode([2e9, [], None])


@pytest.mark.parametrize("seed", range(8))
async def test_runs_have_the_same_effect_as_single_messages_for_hostile_ones(seed: int) -> None:
    messages = list(enumerate(islice(generated.inputs(Random(seed)), 40)))
    await assert_same([*messages, end(len(messages))])


async def test_runs_have_the_same_effect_as_single_messages_when_time_is_in_milliseconds() -> None:
    bodies = [payload(events, timestamp=1.7e12 + n) for n, events in enumerate(islice(churn(Random(1)), 60))]
    await assert_same([*enumerate(bodies), end(len(bodies))])


@pytest.mark.parametrize("seed", range(8))
async def test_runs_have_the_same_effect_as_single_messages_for_lossy_streams(seed: int) -> None:
    rng = Random(seed)
    seqs = list(islice(jumping(rng), 200))
    last = max(seqs)
    bodies = [payload(events, timestamp=1e9 + n) for n, events in enumerate(islice(churn(rng), last + 1))]
    await assert_same([*((seq, bodies[seq]) for seq in seqs), end(last + 1)])


def jumping(rng: Random) -> Iterator[int]:
    """Yield numbers with gaps, duplicates and old ones. A restart would drop what waits, and that depends on time."""
    for seq in count():
        match rng.randrange(12):
            case 0:
                yield from (seq, seq)
            case 1:
                yield max(0, seq - 2)
            case 2:
                pass
            case _:
                yield seq


def churn(rng: Random) -> Iterator[list[Event]]:
    """Yield events as engines send them, with adapters, slower tiers, unknown removals and orphans now and then."""
    known: list[BlockStored] = []
    for number in count(1):
        events: list[Event] = []
        for _ in range(rng.choice((1, 3, 40))):
            kind = rng.randrange(10)
            if kind < 5 or not known:
                known.append(
                    store(rng, number * 1000 + len(events), rng.choice(known) if known and kind else None)
                )
                events.append(known[-1])
            elif kind < 8:
                events.append(BlockRemoved(known.pop(rng.randrange(len(known))).hashes))
            elif kind == 8:
                chosen = rng.choice(known)
                events.append(
                    BlockStored(chosen.hashes, chosen.parent, chosen.tokens, BLOCK, MediumName("CPU"))
                )
            elif rng.random() < 0.2:
                orphan = EngineHash(rng.randrange(1 << 60))
                events.append(BlockStored((orphan,), EngineHash(orphan + 1), array("I", [1] * BLOCK), BLOCK))
                events.append(BlockRemoved((EngineHash(orphan + 2),)))
        yield events


def store(rng: Random, name: int, parent: BlockStored | None) -> BlockStored:
    n_blocks = rng.choice((1, 2, 30))
    return BlockStored(
        hashes=tuple(EngineHash(name * 100 + block) for block in range(n_blocks)),
        parent=parent.hashes[-1] if parent else None,
        tokens=array("I", [rng.randrange(1 << 18) for _ in range(n_blocks * BLOCK)]),
        block_size=BLOCK,
        lora_name=rng.choice((None, None, None, "one", "two")),
    )


def stores(n_messages: int, *, lora: str | None = None) -> Iterable[tuple[int, bytes]]:
    for n in range(n_messages):
        hashes, tokens = (EngineHash(n + 1),), array("I", range(n, n + BLOCK))
        event = BlockStored(hashes, None, tokens, BLOCK, lora_name=lora and f"{lora}{n}")
        yield n, payload([event], timestamp=1e9 + n)


async def test_adapters_are_named_and_bounded_in_runs() -> None:
    await assert_same([*stores(MAX_ADAPTERS + 40, lora="adapter-"), end(MAX_ADAPTERS + 40)])


def test_ledger_applies_messages_of_the_life_that_was_read_last_and_no_others() -> None:
    core, life, other = index_core("native"), b"1" * 16, b"2" * 16
    atlas = Atlas(tiers=TierTable(TIERS), seed=7, core=core)
    atlas.add("e")
    ledger = atlas.ledger("e", 0)
    (_, first), *rest = stores(10)
    ledger.apply_batch(core.decode_batch(first))
    with sockets() as (sender, receiver):
        for seq, body in rest:
            id_of = b"" if seq == 9 else other if seq == 8 else life
            sender.send_multipart([b"kv@e@m", seq.to_bytes(8, "big") + id_of, body])
        inbox = open_inbox(receiver, Losses(), 1 << 20)
        assert inbox.native is not None
        assert ledger.run(inbox.native, 1).timestamps == b"", "the id is new"  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess]
        assert inbox.next() is not None
        run = ledger.run(inbox.native, 2)
        assert run is not None
        assert len(array("d", run.timestamps)) == 6
        for seq in (8, 9):
            assert ledger.run(inbox.native, seq).timestamps == b""  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess]
            assert inbox.next() is not None
        inbox.close()


def test_ledger_applies_ordinary_messages_in_one_call_when_one_of_their_kind_was_applied() -> None:
    core = index_core("native")
    atlas = Atlas(tiers=TierTable(TIERS), seed=7, core=core)
    atlas.add("e")
    ledger = atlas.ledger("e", 0)
    (_, first), *rest = stores(100)
    ledger.apply_batch(core.decode_batch(first))
    with sockets() as (sender, receiver):
        for seq, body in [*rest, end(100), end(102)]:
            sender.send_multipart([b"kv@e@m", seq.to_bytes(8, "big"), body])
        inbox = open_inbox(receiver, Losses(), 1 << 20)
        assert inbox.native is not None
        run = ledger.run(inbox.native, 1)
        assert inbox.next() == [b"kv@e@m", (102).to_bytes(8, "big"), end(102)[1]]
        inbox.close()
    assert run is not None
    assert (run.topic, run.n_events, array("d", run.timestamps)[-1]) == (b"kv@e@m", 99, 2e9)
    assert ledger.residencies(TierId(0)) == 100
