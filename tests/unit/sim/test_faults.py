from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.model import EngineHash
from kvatlas.sim.faults import EventFaults, FaultyStream, Message
from kvatlas.sim.kv_events import BlockRemoved, EventBatch

encode = msgspec.msgpack.Encoder().encode
chances = st.sampled_from([0.0, 0.2, 1.0])


def message(number: int) -> Message:
    return b"kv", number.to_bytes(8, "big"), bytes([number % 256]) * 10


def sent(faults: EventFaults, n_messages: int = 200, *, seed: int = 1) -> list[Message]:
    stream = FaultyStream(faults, Random(seed).random)
    return [each for number in range(n_messages) for each in stream.send(message(number))]


def numbers(messages: list[Message]) -> list[int]:
    return [int.from_bytes(seq, "big") for _topic, seq, _payload in messages]


def test_stream_without_faults_sends_everything_as_it_is() -> None:
    assert sent(EventFaults()) == [message(number) for number in range(200)]


def test_dropped_messages_are_missing_about_as_often_as_asked() -> None:
    assert 130 < len(sent(EventFaults(drop=0.25))) < 170
    assert sent(EventFaults(drop=1.0)) == []


def test_duplicates_come_twice() -> None:
    counts = Counter(numbers(sent(EventFaults(duplicate=0.25))))

    assert set(counts) == set(range(200))
    assert 30 < sum(count == 2 for count in counts.values()) < 70


def test_reordered_messages_come_right_after_a_later_one() -> None:
    got = numbers(sent(EventFaults(reorder=0.25)))

    late = [at for at, number in enumerate(got) if number < max(got[: at + 1])]
    assert 30 < len(late) < 70
    assert all(max(got[:at]) - got[at] < 10 for at in late)


def turned(whole: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in whole)


def cut(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def misnamed(whole: bytes) -> bytes:
    return whole.replace(b"block_hashes", b"block_keys_9")


@pytest.mark.parametrize(
    ("faults", "mangled"),
    [
        pytest.param(EventFaults(corrupt=0.25), turned, id="corrupt"),
        pytest.param(EventFaults(truncate=0.25), cut, id="truncate"),
        pytest.param(EventFaults(foreign=0.25), misnamed, id="foreign"),
    ],
)
def test_payload_is_mangled_about_as_often_as_asked(
    faults: EventFaults, mangled: Callable[[bytes], bytes]
) -> None:
    stream = FaultyStream(faults, Random(0).random)
    whole = encode(EventBatch(1.0, (BlockRemoved(block_hashes=(EngineHash(7),), medium="GPU"),)))

    payloads = [payload for _ in range(200) for _t, _s, payload in stream.send((b"t", b"s", whole))]

    assert set(payloads) == {whole, mangled(whole)}
    assert 30 < payloads.count(mangled(whole)) < 70


@given(drop=chances, duplicate=chances, reorder=chances, truncate=chances, seed=st.integers(0, 100))
def test_nothing_is_made_up_and_equal_seeds_fail_equally(
    drop: float, duplicate: float, reorder: float, truncate: float, seed: int
) -> None:
    faults = EventFaults(drop=drop, duplicate=duplicate, reorder=reorder, truncate=truncate)

    got = sent(faults, 50, seed=seed)

    assert got == sent(faults, 50, seed=seed)
    assert max(Counter(numbers(got)).values(), default=0) <= 2
    assert all(
        message(number)[2].startswith(payload)
        for number, (_t, _s, payload) in zip(numbers(got), got, strict=True)
    )
