"""A stream that continues from the position of an earlier one."""

from __future__ import annotations

import pytest

from kvatlas.events.stamps import N_STAMPS
from kvatlas.events.stream import PublisherStream, Trust
from support.streams import LIMITS, Shell, joined, live, make_stream, replay, starve


def restored(*, can_replay: bool = True, n_batches: int = 3) -> tuple[PublisherStream[int], Shell]:
    """Return a stream that continues from one that had applied the first batches of life 0."""
    before, shell = make_stream(can_replay=can_replay)
    live(before, shell, *range(n_batches))
    position = before.position()
    stream = PublisherStream[int](can_replay=can_replay, limits=LIMITS, position=position)
    assert stream.position() == position
    return stream, shell


def test_restored_stream_is_stale_and_keeps_its_numbers_until_it_is_connected() -> None:
    before, shell = joined()
    shell.take(before.restarted("process start time changed"))
    replay(before, shell, 0, 1, life=1)
    stream = PublisherStream[int](can_replay=True, position=before.position())
    assert (stream.trust, stream.last_seq, stream.epoch) == (Trust.STALE, 1, 1)


def test_stream_that_had_received_nothing_is_restored_as_at_the_start() -> None:
    stream, shell = restored(n_batches=0)
    shell.take(stream.connected())
    assert (stream.trust, shell.requests, stream.last_seq) == (Trust.DARK, [0], None)


def test_restored_stream_goes_on_behind_its_last_batch_in_the_same_life() -> None:
    stream, shell = restored()
    shell.take(stream.connected())
    assert (stream.trust, shell.requests) == (Trust.REPLAYING, [2])
    replay(stream, shell, 2, 3, 4)
    assert (shell.items, shell.resets, stream.trust) == ([*range(5)], [], Trust.LIVE)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((2, 3), id="same_number_of_another_life"),
        pytest.param((), id="history_that_ends_before"),
    ],
)
def test_restored_stream_starts_over_when_the_publisher_began_a_new_life(answer: tuple[int, ...]) -> None:
    stream, shell = restored()
    shell.take(stream.connected())
    replay(stream, shell, *answer[:1], life=1, end=not answer)
    assert (len(shell.resets), shell.requests, stream.epoch) == (1, [2, 0], 1)
    replay(stream, shell, 0, 1, life=1)
    assert (shell.items, stream.trust) == ([0, 1], Trust.LIVE)


def test_restored_stream_keeps_what_it_knows_and_is_partial_when_history_was_cut_since() -> None:
    stream, shell = restored()
    shell.take(stream.connected())
    for attempt in range(LIMITS.max_attempts):
        replay(stream, shell, 7, 8, now=10.0 * attempt)
        shell.take(stream.tick(now=10.0 * attempt + 5))
    assert (shell.items, shell.resets, stream.trust) == ([0, 1, 2, 7, 8], [], Trust.PARTIAL)


def test_restored_stream_is_partial_when_batches_may_have_been_missed_without_replay() -> None:
    stream, shell = restored(can_replay=False)
    shell.take(stream.connected())
    assert stream.trust is Trust.PARTIAL
    live(stream, shell, 3)
    assert (shell.items, stream.trust) == ([0, 1, 2, 3], Trust.PARTIAL)
    live(stream, shell, 1, life=1)
    assert len(shell.resets) == 1


def test_restored_stream_is_partial_and_goes_on_when_its_replay_server_never_answers() -> None:
    stream, shell = restored()
    shell.take(stream.connected())
    starve(stream, shell)
    live(stream, shell, 3)
    assert (shell.items, stream.trust) == ([0, 1, 2, 3], Trust.PARTIAL)


def test_restored_stream_stays_partial_when_it_was() -> None:
    before, shell = make_stream(can_replay=False)
    live(before, shell, 0, 1, 4)
    stream = PublisherStream[int](can_replay=True, limits=LIMITS, position=before.position())
    shell.take(stream.connected())
    replay(stream, shell, 4)
    assert (stream.trust, shell.resets) == (Trust.PARTIAL, [])


def test_restored_stream_takes_batches_before_its_stamps_for_duplicates_unless_they_are_newer() -> None:
    stream, shell = restored(can_replay=False, n_batches=N_STAMPS + 10)
    shell.take(stream.connected())
    live(stream, shell, 3)  # its stamp is no longer kept, and older than the newest
    assert (shell.resets, stream.counters.duplicates) == ([], 1)
    live(stream, shell, 3, life=2)
    assert len(shell.resets) == 1


def test_position_before_a_batch_has_the_stamps_before_it() -> None:
    before, shell = joined()
    live(before, shell, *range(5))
    position = before.position()
    earlier = position.before(3)
    assert (earlier.next_seq, earlier.stamps) == (3, position.stamps[:3])
    assert not position.before(0).stamps
