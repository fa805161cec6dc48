"""Requests between replicas: replies of all that live, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.app.replicas.requests import LETTERS, MAX_PARTS, PART_BYTES, Requests
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.fleet.replicas.channel import MalformedError
from support.linked_replicas import LinkedReplicas
from support.waiting import until

SOON_S = 0.05


def whole(reply: bytes) -> bytes:
    return reply


@asynccontextmanager
async def three(*, expected: tuple[str, ...] = ()) -> AsyncGenerator[tuple[LinkedReplicas, list[Requests]]]:
    """Run replicas `a`, `b` and `c` that hear each other; `b` and `c` repeat what is asked."""
    async with LinkedReplicas(silent_ms=5000) as network:
        made: list[Requests] = []
        for name in "abc":
            linked = network.add(name)

            def post(to: str, payload: bytes, *, name: str = name) -> None:
                network.replicas[name].post(LETTERS, to, payload)

            requests = Requests(linked.living, post, expected=expected)
            linked.letters[LETTERS] = requests
            made.append(requests)
            linked.start()
        for requests in made[1:]:
            requests.handle("repeat", repeat)
        await until(lambda: all(len(each.living()) == 2 for each in network.replicas.values()))
        yield network, made


async def repeat(body: bytes) -> bytes:
    return body


def send_nothing(to: str, payload: bytes) -> None:
    pass


async def fail(_: bytes) -> bytes:
    raise ConfigRefusedError("no")


async def test_all_that_live_reply_and_each_request_has_its_own_replies() -> None:
    async with three() as (_, (asker, *_others)):
        requests = (asker.request("repeat", bytes([n]), whole, timeout_s=60) for n in range(20))
        found = await asyncio.gather(*requests)
        assert [each.found for each in found] == [{"b": bytes([n]), "c": bytes([n])} for n in range(20)]
        assert not any(each.missing for each in found)


@pytest.mark.parametrize("n_bytes", [0, PART_BYTES, 3 * PART_BYTES + 1])
async def test_reply_passes_whole(n_bytes: int) -> None:
    async with three() as (_, (asker, other, _third)):

        async def reply(_: bytes) -> bytes:
            return bytes(n_bytes)

        other.handle("repeat", reply)
        assert (await asker.request("repeat", b"?", whole, timeout_s=60)).found["b"] == bytes(n_bytes)


@pytest.mark.parametrize("why", ["cut", "unknown", "fails", "long", "unreadable"])
async def test_replica_without_a_reply_is_missing(why: str, caplog: pytest.LogCaptureFixture) -> None:
    async with three() as (network, (asker, other, third)):

        async def too_long(_: bytes) -> bytes:
            return bytes(MAX_PARTS * PART_BYTES + 1)

        def read(reply: bytes) -> bytes:
            return msgspec.msgpack.decode(reply, type=bytes)

        async def packed(body: bytes) -> bytes:
            return msgspec.msgpack.encode(body)

        third.handle("pack", packed)
        handlers = {"cut": packed, "fails": fail, "long": too_long, "unreadable": repeat}
        if why == "cut":
            network.cut.add("b")
        if why in handlers:
            other.handle("pack", handlers[why])
        found = await asker.request("pack", b"\xc1", read, timeout_s=SOON_S if why == "cut" else 60)

        assert "b" in found.missing
        if why != "cut":  # then `c` has little time too
            assert (found.found, found.missing) == ({"c": b"\xc1"}, ["b"])
        assert ("requested pack: no" in caplog.text) == (why == "fails")


async def test_expected_replica_that_does_not_live_is_missing_at_once() -> None:
    async with three(expected=("b", "z")) as (_, (asker, *_others)):
        found = await asker.request("repeat", b"?", whole, timeout_s=60)
        assert (sorted(found.found), found.missing) == (["b", "c"], ["z"])


async def test_late_reply_changes_nothing() -> None:
    late = asyncio.Event()

    async def wait(_: bytes) -> bytes:
        await late.wait()
        return b"late"

    async with three() as (_, (asker, other, _third)):
        other.handle("repeat", wait)
        assert "b" in (await asker.request("repeat", b"1", whole, timeout_s=SOON_S)).missing
        other.handle("repeat", repeat)
        late.set()
        assert (await asker.request("repeat", b"2", whole, timeout_s=60)).found == {"b": b"2", "c": b"2"}


@given(payload=st.binary(max_size=40))
def test_foreign_letter_is_refused_or_ignored(payload: bytes) -> None:
    requests = Requests(lambda: (), send_nothing)
    try:
        msgspec.msgpack.decode(payload, type=tuple[str, int, str, bytes])
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    else:
        return  # a request, which would need a loop
    with suppress(MalformedError):
        assert requests.received("x/1", payload, 0) == ()


@pytest.mark.parametrize("parts", [(0, 0), (5, 2), (1, MAX_PARTS + 1), (-1, 2)])
async def test_odd_parts_of_a_reply_do_no_harm(parts: tuple[int, int]) -> None:
    async with three() as (network, (asker, *_others)):
        sender = network.replicas["b"].id
        for number in range(3):
            try:
                asker.received(sender, msgspec.msgpack.encode(("!", number, *parts, b"x")), 0)
            except MalformedError:
                assert parts[1] > MAX_PARTS or parts[0] < 0
        assert len((await asker.request("repeat", b"?", whole, timeout_s=60)).found) == 2
