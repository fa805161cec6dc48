"""Engines and strangers that send events without end, without sense, or under another name, to a running process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import zmq
from zmq.auth import create_certificates, load_certificate  # pyright: ignore[reportUnknownVariableType]  # pyzmq

from support.hostile_engine import HostileEngine, Message, hostile_engine, message
from support.serve import Served, serving
from support.waiting import until

MIB = 1024 * 1024
REFUSED = "kvatlas_event_connections_refused_total"
Keys = tuple[bytes, bytes, bytes]
"""Public and secret key of a publisher, and public key of kvatlas."""


def history(n: int) -> Callable[[int], Iterator[Message]]:
    """Return answers of an honest publisher with `n` batches."""
    return lambda start: (message(seq) for seq in range(start, n))


def endless(*, n_bytes: int = 0) -> Callable[[int], Iterator[Message]]:
    """Return answers that never end."""
    return lambda start: (message(seq, n_bytes=n_bytes) for seq in count(start))


@asynccontextmanager
async def following(engine: HostileEngine, folder: Path, **events: Any) -> AsyncGenerator[Served]:
    config = {"endpoints": {"static": [engine.static()]}, "events": events}
    async with serving(config, folder, ready=False) as served:
        yield served


async def publisher(served: Served, engine: HostileEngine) -> dict[str, Any]:
    row = await served.get(f"/v1/endpoints/{engine.name}")
    first: dict[str, Any] = row["publishers"][0]
    return first


async def until_trust(served: Served, engine: HostileEngine, trust: str) -> None:
    async def has_it() -> bool:
        return bool((await publisher(served, engine))["trust"] == trust)

    await until(has_it, what=f"trust {trust}")


async def total(served: Served, metric: str) -> float:
    """Return the sum of a counter's series."""
    lines = (await served.metrics()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))


async def test_endless_replay_is_cut_off_while_others_are_served(tmp_path: Path) -> None:
    with hostile_engine(endless()) as engine:
        async with following(engine, tmp_path, maxReplayBatches=3000) as served:
            await served.until_metric('kvatlas_stream_replay_cuts_total{endpoint="hostile",rank="0"} 1.0')
            await until_trust(served, engine, "partial")
            await served.until_logged("a replay from")


async def test_process_ends_in_the_middle_of_an_endless_replay(tmp_path: Path) -> None:
    with hostile_engine(endless()) as engine:
        async with following(engine, tmp_path, maxReplayBatches=1 << 40) as served:
            await until(lambda: engine.n_replayed > 5000)
            assert (await publisher(served, engine))["trust"] == "replaying"


async def test_replay_faster_than_its_application_takes_bounded_memory(tmp_path: Path) -> None:
    with hostile_engine(endless(n_bytes=4 * MIB)) as engine:
        async with following(engine, tmp_path, maxQueuedBytes=32 * MIB, maxReplayBatches=300) as served:
            before = served.resident_mib()
            most = before
            while not await total(served, "kvatlas_stream_replay_cuts_total"):
                most = max(most, served.resident_mib())
    assert most - before < 600, f"{before:.0f} to {most:.0f} MiB for 300 batches of 4 MiB"


async def test_engines_that_replay_at_once_share_their_memory(tmp_path: Path) -> None:
    n_batches = 120
    padded = [message(seq, n_bytes=700_000) for seq in range(n_batches)]
    with ExitStack() as stack:
        engines = [
            stack.enter_context(hostile_engine(lambda start: iter(padded[start:]), name=f"hostile-{number}"))
            for number in range(8)
        ]
        static = [engine.static() for engine in engines]
        config = {"endpoints": {"static": static}, "events": {"maxReplayBytes": 16 * MIB}}
        async with serving(config, tmp_path, ready=False) as served:
            before = most = served.resident_mib()
            for engine in engines:
                while (await publisher(served, engine))["lastSeq"] != n_batches - 1:
                    most = max(most, served.resident_mib())
                await until_trust(served, engine, "live")
    # the last ones may find the others done, and all of the room theirs
    assert any(len(engine.asked) > 1 for engine in engines), "replies were broken off"
    assert most - before < 450, f"{before:.0f} to {most:.0f} MiB for 8 replies of 80 MiB"


async def test_honest_history_of_ten_thousand_batches_is_applied_in_turns(tmp_path: Path) -> None:
    with hostile_engine(history(10_000)) as engine:
        async with following(engine, tmp_path) as served:
            seen = set[int]()
            while 9999 not in seen:
                seen.add((await publisher(served, engine))["lastSeq"] or 0)
            await until_trust(served, engine, "live")
            assert engine.asked[0] == 0
    assert len(seen) > 5, "requests are answered between the batches"


def nested(depth: int) -> bytes:
    """Return a msgpack array in an array in an array."""
    return b"\x91" * depth + b"\x01"


ONE_EVENT = b"\x92\xcb" + bytes(8) + b"\x91"
"""The start of a batch with one event."""

NESTED = {
    "tag": ONE_EVENT + b"\x81\xa4type" + nested(800),
    "tag of an array": ONE_EVENT + b"\x92" + nested(800) + b"\x01",
    "block size": ONE_EVENT + b"\x82\xa4type\xabBlockStored\xaablock_size" + nested(800),
    "group": ONE_EVENT + b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xa9group_idx" + nested(800),
    "key of a map": ONE_EVENT + b"\x81" + nested(800) + b"\x01",
    "key that cannot be hashed": ONE_EVENT + b"\x81\x81\x01\x01\x01",
    "rank": b"\x93\xcb" + bytes(8) + b"\x90" + nested(800),
    "batch": b"\x91" * 5_000_000,
}


async def test_nested_values_are_refused_without_a_word_of_theirs(tmp_path: Path) -> None:
    with hostile_engine(history(3)) as engine:
        async with following(engine, tmp_path) as served:
            await until_trust(served, engine, "live")
            true = [message(seq) for seq in range(3)]
            engine.answer = lambda start: (each for each in true if int.from_bytes(each[0], "big") >= start)
            for odd, name in enumerate(NESTED):
                seq = 3 + 2 * odd
                true.append(message(seq + 1))
                engine.send((seq.to_bytes(8, "big"), NESTED[name]), true[-1])
                await served.until_applied(engine.name, seq + 1)
    assert not any("[[" in line or "Traceback" in line for line in served.log)


async def test_forged_batches_are_outvoted_by_the_true_ones(tmp_path: Path) -> None:
    with hostile_engine(history(3)) as engine:
        async with following(engine, tmp_path) as served:
            await until_trust(served, engine, "live")
            following_seq = 3
            for ahead in (1 << 63, 1 << 47, 1 << 20, 1, 0, -2):
                for ts in (1e18, 0.0):
                    engine.send(message(following_seq + ahead, ts=ts))
                    true = range(following_seq, following_seq + 20)
                    engine.answer = history(true.stop)
                    for number in true:
                        engine.send(message(number))
                    await served.until_applied(engine.name, true[-1])
                    await until_trust(served, engine, "live")
                    following_seq = true.stop


@contextmanager
def publisher_socket(address: str, keys: Keys | None = None) -> Generator[zmq.Socket[bytes]]:
    """Connect a PUB socket of somebody, with the keys of a client and of kvatlas if there are any."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys[0])
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys[1])
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys[2])
    socket.connect(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


@asynccontextmanager
async def bound(engine: HostileEngine, folder: Path, **events: Any) -> AsyncGenerator[tuple[Served, str]]:
    """Run a process in mode bind; yield it and its event address."""
    async with following(engine, folder, mode="bind", bind="tcp://127.0.0.1:0", **events) as served:
        await served.until_logged("events listens on")
        yield served, f"tcp://127.0.0.1:{served.ports['events']}"


async def test_stranger_does_not_silence_an_engine_of_a_bound_socket(tmp_path: Path) -> None:
    with hostile_engine(history(3)) as engine:
        async with bound(engine, tmp_path) as (served, address):
            await until_trust(served, engine, "live")
            with publisher_socket(address) as stranger:

                async def is_heard() -> bool:
                    stranger.send_multipart([engine.topic, *message(1 << 40, ts=1e18)])
                    return bool(await total(served, "kvatlas_stream_implausible_total"))

                await until(is_heard)
            engine.answer = history(40)
            engine.pub.connect(address)

            async def recovered() -> bool:
                for number in range(3, 40):
                    engine.send(message(number))
                return bool((await publisher(served, engine))["lastSeq"] == 39)

            await until(recovered, what="the engine's own batches")
            await until_trust(served, engine, "live")


async def test_publisher_from_a_network_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    with hostile_engine(history(0)) as engine:
        async with bound(engine, tmp_path, bindAllow=["10.0.0.0/8"]) as (served, address):
            with publisher_socket(address) as socket:

                async def is_refused() -> bool:
                    socket.send_multipart([engine.topic, *message(0)])
                    return bool(await total(served, REFUSED + '{reason="address"}'))

                await until(is_refused)
            await served.until_logged("a connection of 127.0.0.1 was refused (address)")
            assert (await publisher(served, engine))["lastSeq"] is None


async def test_connections_of_publishers_are_bounded(tmp_path: Path) -> None:
    with hostile_engine(history(0)) as engine, ExitStack() as stack:
        async with bound(engine, tmp_path, bindMaxConnections=3) as (served, address):
            for _ in range(6):
                stack.enter_context(publisher_socket(address))

            async def is_refused() -> bool:
                return bool(await total(served, REFUSED + '{reason="connections"}'))

            await until(is_refused)
            stack.close()
            with publisher_socket(address) as socket:

                async def is_heard() -> bool:
                    socket.send_multipart([engine.topic, *message(0)])
                    return bool((await publisher(served, engine))["lastSeq"] == 0)

                await until(is_heard, what="a publisher after the others have left")


async def test_only_publishers_with_a_known_key_are_heard(tmp_path: Path) -> None:
    peers = tmp_path / "peers"
    peers.mkdir()
    own = create_certificates(tmp_path, "kvatlas")[1]
    known = load_certificate(create_certificates(peers, "engine")[1])
    server = load_certificate(own)[0]
    curve = {"keyFile": own, "peersFolder": str(peers)}
    with hostile_engine(history(0)) as engine:
        async with bound(engine, tmp_path, curve=curve) as (served, address):
            with (
                publisher_socket(address) as plain,
                publisher_socket(address, (*zmq.curve_keypair(), server)) as unknown,
                publisher_socket(address, (known[0], known[1] or b"", server)) as right,
            ):

                async def is_refused() -> bool:
                    for socket in (plain, unknown):
                        socket.send_multipart([engine.topic, *message(7)])
                    return bool(await total(served, REFUSED + '{reason="key"}'))

                await until(is_refused)

                async def is_heard() -> bool:
                    right.send_multipart([engine.topic, *message(0)])
                    return (await publisher(served, engine))["lastSeq"] is not None

                await until(is_heard)
            assert (await publisher(served, engine))["lastSeq"] == 0
    assert not any(known[1] is not None and known[1].decode() in line for line in served.log)
