"""A publisher stream after batches that its publisher cannot have sent, by number or by time."""

from __future__ import annotations

import pytest

from kvatlas.events.order import MAX_JUMP
from kvatlas.events.stream import PublisherStream, Trust
from support.streams import LIMITS, Shell, joined, live, make_stream, replay

FAR = 1e18
"""A time stamp far ahead."""

NOW = 1e6
"""The newest time stamp that can be true."""


def forge(stream: PublisherStream[int], shell: Shell, seq: int, *, ts: float = FAR) -> None:
    """Deliver a batch of a stranger, whose item is negative."""
    shell.take(stream.live(seq, -1, ts=ts, latest=NOW))


@pytest.mark.parametrize("seq", [1 << 47, MAX_JUMP + 4], ids=["impossible", "unlikely"])
@pytest.mark.parametrize("ts", [0.0, 3.5, FAR])
def test_batch_too_far_ahead_changes_nothing(seq: int, ts: float) -> None:
    stream, shell = joined()
    forge(stream, shell, seq, ts=ts)
    live(stream, shell, 3, 4)
    assert (shell.items, shell.requests, stream.trust) == ([*range(5)], [], Trust.LIVE)
    assert stream.counters.implausible == 1


def test_batch_that_the_publishers_history_lacks_is_dropped_while_true_ones_flow() -> None:
    stream, shell = joined()
    forge(stream, shell, 1000)
    for attempt in range(LIMITS.max_attempts):
        if not stream.awaits_replay:
            break
        live(stream, shell, 3 + attempt)
        at = 10.0 * attempt
        replay(stream, shell, *range(shell.requests[-1], 4 + attempt), now=at)
        shell.take(stream.tick(now=at + 5))
    assert (stream.awaits_replay, stream.counters.disowned, stream.counters.lost) == (False, 1, 0)
    assert (stream.trust, shell.items) == (Trust.LIVE, [*range(len(shell.items))])
    assert len(shell.requests) <= LIMITS.max_attempts


def test_forged_next_batch_is_replaced_by_the_true_one() -> None:
    stream, shell = joined()
    forge(stream, shell, 3, ts=0.0)
    live(stream, shell, 3)
    replay(stream, shell, 0, 1, 2, 3)
    assert (shell.items, stream.trust, len(shell.resets)) == ([0, 1, 2, 3], Trust.LIVE, 1)


def test_duplicates_in_a_row_have_the_history_asked_and_a_restart_believed() -> None:
    stream, shell = make_stream()
    shell.take(stream.connected())
    forge(stream, shell, 1 << 40)  # the first batch ever, so that its number may be true
    for attempt in range(LIMITS.max_attempts):
        replay(stream, shell, now=10.0 * attempt)
        shell.take(stream.tick(now=10.0 * attempt + 5))
    assert shell.items == [-1]
    n_sent = 0
    while not shell.resets and n_sent <= LIMITS.max_doubtful:
        shell.take(stream.live(n_sent, n_sent, ts=n_sent - 100.0, latest=NOW))
        n_sent += 1
        if shell.requests[-1] == 1 << 40:
            replay(stream, shell)
    replay(stream, shell, *range(n_sent))
    live(stream, shell, n_sent)
    assert (shell.items, stream.trust) == ([*range(n_sent + 1)], Trust.LIVE)


@pytest.mark.parametrize("seq", [1000, MAX_JUMP])
def test_restart_is_believed_after_many_batches_when_there_is_no_replay(seq: int) -> None:
    stream, shell = make_stream(can_replay=False)
    live(stream, shell, 0, 1, 2)
    forge(stream, shell, seq)
    seqs = range(3, 3 + 2 * LIMITS.max_doubtful)
    live(stream, shell, *seqs)
    assert (shell.items[-1], len(shell.resets), stream.trust) == (seqs[-1], 1, Trust.PARTIAL)
    assert -1 not in shell.items


def test_time_stamp_that_cannot_be_true_is_no_evidence_of_a_restart() -> None:
    stream, shell = make_stream(can_replay=False)
    live(stream, shell, 0, 1, 2, 900)  # forgets the stamps of the batches before the gap
    forge(stream, shell, 1)
    assert (shell.resets, stream.counters.duplicates) == ([], 1)


def test_late_duplicates_cost_fewer_and_fewer_requests() -> None:
    stream, shell = joined()
    replay_late = range(3, 1400)
    live(stream, shell, *replay_late)
    shell.requests.clear()
    n_answered = 0
    for seq in [*range(300)] * 4:  # their time stamps are no longer known
        live(stream, shell, seq)
        if len(shell.requests) > n_answered:
            n_answered += 1
            replay(stream, shell, 1399)
    assert (shell.resets, shell.items[-1], stream.trust) == ([], 1399, Trust.LIVE)
    assert n_answered <= 7


def test_pages_are_requested_with_a_pause_when_each_brings_little() -> None:
    stream, shell = joined()
    live(stream, shell, 1000)
    shell.requests.clear()
    at, n_at_once = 3, 0
    while stream.awaits_answer:
        replay(stream, shell, at, now=1.0)
        at, n_at_once = at + 1, n_at_once + 1
    assert LIMITS.max_pages <= n_at_once <= LIMITS.max_pages + 1
    assert stream.awaits_replay
    shell.take(stream.tick(now=1.0 + LIMITS.backoff_s))
    assert shell.requests[-1] == at


def test_reply_that_was_cut_off_leaves_partial_trust_and_goes_on() -> None:
    stream, shell = joined()
    live(stream, shell, 10, 20)
    replay(stream, shell, 3, 4, end=False)
    shell.take(stream.replay_cut())
    live(stream, shell, 21)
    assert shell.items == [0, 1, 2, 3, 4, 10, 20, 21]
    assert (stream.trust, stream.awaits_replay, stream.counters.replay_cuts) == (Trust.PARTIAL, False, 1)


def lie(stream: PublisherStream[int], shell: Shell, *, times: int, every_s: float) -> None:
    """Have a publisher publish a batch, and answer a routine check with the same batches at other times, again and again."""
    for number in range(times):
        live(stream, shell, stream.last_seq + 1 if stream.last_seq is not None else 0)
        shell.take(stream.check())
        for _ in range(LIMITS.max_attempts):
            if stream.awaits_answer:
                end = (stream.last_seq or 0) + 1
                replay(stream, shell, *range(shell.requests[-1], end), life=number + 1, now=number * every_s)


def test_publisher_whose_replays_have_other_times_is_believed_no_more() -> None:
    stream, shell = joined()
    lie(stream, shell, times=30, every_s=1.0)
    assert (len(shell.resets), stream.counters.lying_stamps) == (1, 1)
    assert (stream.trust, len(shell.items)) == (Trust.LIVE, (stream.last_seq or 0) + 1)


def test_lives_that_are_far_apart_are_believed() -> None:
    stream, shell = joined()
    lie(stream, shell, times=3, every_s=61.0)
    assert (len(shell.resets), stream.counters.lying_stamps) == (3, 0)


def test_evidence_of_a_restart_from_elsewhere_makes_its_times_believed_again() -> None:
    stream, shell = joined()
    lie(stream, shell, times=3, every_s=1.0)
    shell.take(stream.restarted("its process start time changed"))
    replay(stream, shell, 0, 1, life=5, now=500.0)
    shell.take(stream.check())
    shell.resets.clear()
    replay(stream, shell, 1, life=6, now=600.0)
    assert shell.resets == ["replay answered with another life's batch 1"]


def long_joined() -> tuple[PublisherStream[int], Shell]:
    """Return a stream without replay that no longer keeps the time stamp of batch 0."""
    stream, shell = make_stream(can_replay=False)
    shell.take(stream.connected())
    for seq in range(1100):
        shell.take(stream.live(seq, seq, ts=float(seq + 1)))
    return stream, shell


@pytest.mark.parametrize("ts", [0.0, 0.5], ids=["no_time", "earlier"])
def test_first_batch_with_a_start_mark_is_a_new_life(ts: float) -> None:
    stream, shell = long_joined()
    shell.take(stream.live(0, 0, ts=ts, latest=NOW, begins=True))
    assert (len(shell.resets), stream.last_seq) == (1, 0)


def test_duplicate_of_the_first_batch_is_no_new_life_in_spite_of_its_mark() -> None:
    stream, shell = joined()
    shell.take(stream.live(0, 0, ts=1.0, latest=NOW, begins=True))
    assert (shell.resets, stream.last_seq) == ([], 2)


def test_a_start_mark_is_believed_of_batch_0_alone() -> None:
    stream, shell = long_joined()
    shell.take(stream.live(5, 5, ts=0.0, latest=NOW, begins=True))
    assert shell.resets == []
