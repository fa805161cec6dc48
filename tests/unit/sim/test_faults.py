from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvatlas.sim.faults import EventFaults, FaultyStream, Message

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


def test_corrupt_payload_is_cut() -> None:
    payloads = Counter(len(payload) for _topic, _seq, payload in sent(EventFaults(corrupt=0.25)))

    assert set(payloads) == {5, 10}
    assert 30 < payloads[5] < 70


@given(drop=chances, duplicate=chances, reorder=chances, corrupt=chances, seed=st.integers(0, 100))
def test_nothing_is_made_up_and_equal_seeds_fail_equally(
    drop: float, duplicate: float, reorder: float, corrupt: float, seed: int
) -> None:
    faults = EventFaults(drop=drop, duplicate=duplicate, reorder=reorder, corrupt=corrupt)

    got = sent(faults, 50, seed=seed)

    assert got == sent(faults, 50, seed=seed)
    assert max(Counter(numbers(got)).values(), default=0) <= 2
    assert all(
        message(number)[2].startswith(payload)
        for number, (_t, _s, payload) in zip(numbers(got), got, strict=True)
    )
