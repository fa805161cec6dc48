"""The publisher stream: gaps, duplicates, restarts, replay, and trust."""

from __future__ import annotations

import pytest

from kvatlas.events.stream import Trust
from support.streams import LIMITS, joined, live, make_stream, replay, starve


def test_stream_is_dark_until_a_message_arrives() -> None:
    stream, shell = make_stream()
    assert stream.trust is Trust.DARK
    shell.take(stream.connected())
    assert (stream.trust, shell.requests) == (Trust.DARK, [0])


def test_stream_is_live_when_history_from_the_start_was_applied() -> None:
    stream, shell = joined()
    assert (stream.trust, shell.items, stream.last_seq) == (Trust.LIVE, [0, 1, 2], 2)


def test_late_join_fetches_history_and_keeps_live_batches_meanwhile() -> None:
    stream, shell = make_stream()
    shell.take(stream.connected())
    live(stream, shell, 7, 8)
    assert (shell.items, stream.trust) == ([], Trust.REPLAYING)
    replay(stream, shell, *range(8))
    assert (shell.items, stream.trust) == ([*range(9)], Trust.LIVE)
    assert stream.counters.duplicates == 1


def test_gap_is_fetched_and_nothing_is_applied_twice() -> None:
    stream, shell = joined()
    live(stream, shell, 5)
    assert (shell.items, shell.requests, stream.trust) == ([0, 1, 2], [3], Trust.REPLAYING)
    replay(stream, shell, 3, 4, 5)
    live(stream, shell, 6)
    assert (shell.items, stream.trust, stream.counters.gaps) == ([*range(7)], Trust.LIVE, 1)


def test_gap_without_replay_leaves_partial_trust_and_goes_on() -> None:
    stream, shell = make_stream(can_replay=False)
    live(stream, shell, 0, 1, 4, 5)
    assert (shell.items, stream.trust, stream.counters.lost) == ([0, 1, 4, 5], Trust.PARTIAL, 2)


@pytest.mark.parametrize("can_replay", [True, False])
def test_duplicate_is_dropped(can_replay: bool) -> None:
    stream, shell = make_stream(can_replay=can_replay)
    live(stream, shell, 0, 1, 1, 0, 2)
    assert (shell.items, shell.resets, stream.counters.duplicates) == ([0, 1, 2], [], 2)


def test_reordered_batches_are_applied_in_order() -> None:
    stream, shell = joined()
    live(stream, shell, 4, 3)
    assert shell.items == [0, 1, 2, 3, 4]


def test_restart_resets_and_fetches_the_new_life_when_sequence_goes_back() -> None:
    stream, shell = joined()
    live(stream, shell, 1, life=1)
    assert (len(shell.resets), shell.requests, stream.epoch) == (1, [0], 1)
    replay(stream, shell, 0, 1, life=1)
    assert (shell.items, stream.trust) == ([0, 1], Trust.LIVE)


def test_restart_is_seen_when_the_clock_of_the_new_life_is_behind() -> None:
    stream, shell = joined()
    live(stream, shell, 0, life=-1)
    assert len(shell.resets) == 1


def test_restart_is_seen_on_reconnect_before_any_event() -> None:
    stream, shell = joined()
    stream.disconnected()
    assert stream.trust is Trust.STALE
    shell.take(stream.connected())
    assert shell.requests == [2]
    replay(stream, shell)
    assert (len(shell.resets), shell.requests) == (1, [2, 0])


def test_reconnect_to_the_same_life_fetches_what_was_missed() -> None:
    stream, shell = joined()
    stream.disconnected()
    shell.take(stream.connected())
    replay(stream, shell, 2, 3, 4)
    assert (shell.items, shell.resets, stream.trust) == ([0, 1, 2, 3, 4], [], Trust.LIVE)


def test_batch_that_overtakes_the_news_of_its_connection_waits_until_the_life_is_known() -> None:
    stream, shell = joined()
    stream.disconnected()
    live(stream, shell, 3, life=1)  # fits on what was applied, and is of another life
    assert (shell.items, shell.requests, stream.trust) == ([0, 1, 2], [2], Trust.REPLAYING)
    shell.take(stream.connected())
    replay(stream, shell, 2, life=1, end=False)
    assert (len(shell.resets), shell.requests[-1]) == (1, 0)
    replay(stream, shell, 0, 1, 2, 3, life=1)
    assert (shell.items, stream.trust) == ([0, 1, 2, 3], Trust.LIVE)


def test_batch_that_overtakes_the_news_of_its_connection_is_applied_and_trust_partial_without_replay() -> (
    None
):
    stream, shell = make_stream(can_replay=False)
    live(stream, shell, 0, 1)
    stream.disconnected()
    live(stream, shell, 2)
    assert (shell.items, stream.trust) == ([0, 1, 2], Trust.PARTIAL)


def test_silent_restart_is_taken_on_evidence_from_elsewhere() -> None:
    stream, shell = joined()
    shell.take(stream.restarted("process start time changed"))
    live(stream, shell, 3, life=1)
    replay(stream, shell, 0, 1, 2, 3, life=1)
    assert (shell.items, shell.resets) == ([0, 1, 2, 3], ["process start time changed"])


def test_replay_is_repeated_from_the_first_hole_when_answers_were_dropped() -> None:
    stream, shell = joined()
    live(stream, shell, 20)
    replay(stream, shell, 3, 4, 9, 10)
    assert shell.requests == [3, 5]
    replay(stream, shell, *range(5, 21))
    assert (shell.items, stream.trust) == ([*range(21)], Trust.LIVE)


def test_truncated_history_is_given_up_and_marked_partial() -> None:
    stream, shell = make_stream()
    shell.take(stream.connected())
    for attempt in range(LIMITS.max_attempts):
        replay(stream, shell, 7, 8, 9, now=10.0 * attempt)
        shell.take(stream.tick(now=10.0 * attempt + 5))
    assert (shell.items, stream.trust, stream.counters.lost) == ([7, 8, 9], Trust.PARTIAL, 7)
    live(stream, shell, 10)
    assert shell.items[-1] == 10


def test_publisher_that_counts_from_one_is_complete() -> None:
    stream, shell = make_stream()
    shell.take(stream.connected())
    for attempt in range(LIMITS.max_attempts):
        replay(stream, shell, 1, 2, now=10.0 * attempt)
        shell.take(stream.tick(now=10.0 * attempt + 5))
    assert (shell.items, stream.trust, stream.counters.lost) == ([1, 2], Trust.LIVE, 0)


def test_missing_end_marker_times_out_and_keeps_what_came() -> None:
    stream, shell = joined()
    live(stream, shell, 6)
    replay(stream, shell, 3, 4, 5, now=1.0, end=False)
    assert (shell.items, stream.awaits_replay) == ([*range(7)], True)
    starve(stream, shell)
    assert (shell.items, stream.awaits_replay) == ([*range(7)], False)


def test_replay_server_that_never_answers_does_not_blind_the_publisher() -> None:
    stream, shell = make_stream()
    shell.take(stream.connected())
    starve(stream, shell)
    live(stream, shell, 0, 1)
    assert (shell.items, stream.trust) == ([0, 1], Trust.PARTIAL)
    shell.take(stream.check())
    replay(stream, shell, 1)
    assert stream.trust is Trust.LIVE


def test_request_that_waits_for_a_slot_does_not_time_out() -> None:
    stream, shell = make_stream()
    shell.take(stream.connected())
    shell.take(stream.tick(now=1e6))
    assert (shell.requests, stream.counters.replay_failures) == ([0], 0)


def test_routine_check_does_not_lower_trust_unless_something_was_missed() -> None:
    stream, shell = joined()
    shell.take(stream.check())
    assert (stream.trust, shell.requests) == (Trust.LIVE, [2])
    live(stream, shell, 4)
    assert stream.trust is Trust.REPLAYING
    replay(stream, shell, 2, 3, 4)
    assert (stream.trust, shell.items) == (Trust.LIVE, [*range(5)])


def test_history_cut_short_under_a_lasting_connection_is_no_new_life() -> None:
    stream, shell = joined()
    shell.take(stream.check())
    replay(stream, shell)
    assert (shell.items, shell.resets, stream.trust) == ([0, 1, 2], [], Trust.PARTIAL)


def test_idle_check_of_a_unwatched_connection_finds_a_new_life() -> None:
    stream, shell = joined()
    shell.take(stream.check(same_connection=False))
    replay(stream, shell)
    assert len(shell.resets) == 1


def test_reconnect_without_replay_is_partial_since_batches_may_have_been_missed() -> None:
    stream, shell = make_stream(can_replay=False)
    shell.take(stream.connected())
    live(stream, shell, 0, 1)
    assert stream.trust is Trust.LIVE
    stream.disconnected()
    shell.take(stream.connected())
    live(stream, shell, 2)
    assert (stream.trust, shell.items) == (Trust.PARTIAL, [0, 1, 2])


def test_damage_is_partial_until_a_new_life() -> None:
    stream, shell = joined()
    stream.damaged()
    trusts = [stream.trust]
    shell.take(stream.restarted("process start time changed"))
    replay(stream, shell, 0, life=1)
    assert [*trusts, stream.trust] == [Trust.PARTIAL, Trust.LIVE]


def test_held_batches_are_bounded() -> None:
    stream, shell = joined()
    live(stream, shell, *range(10, 10 + 2 * LIMITS.max_held))
    assert stream.counters.lost >= 7
    replay(stream, shell, *range(10, 10 + 2 * LIMITS.max_held))
    assert shell.items[-1] == 9 + 2 * LIMITS.max_held
    assert shell.items == sorted(set(shell.items))


def test_held_batches_are_bounded_in_bytes() -> None:
    stream, shell = joined()
    for seq in (10, 11, 12):
        shell.take(stream.live(seq, seq, ts=seq + 1, size_bytes=400))
    assert shell.items == [0, 1, 2, 10, 11, 12]
    assert (stream.counters.lost, stream.held_bytes) == (7, 0)


def test_large_batches_take_the_place_of_small_ones_with_the_holes_before_them() -> None:
    stream, shell = joined()
    for seq in range(10, 10 + LIMITS.max_held, 2):
        shell.take(stream.live(seq, seq, ts=seq + 1, size_bytes=1))
    assert shell.items == [0, 1, 2]
    for seq in range(100, 120, 2):
        shell.take(stream.live(seq, seq, ts=seq + 1, size_bytes=600))
        assert stream.held_bytes <= LIMITS.max_held_bytes
    assert shell.items[-1] == 116
    assert shell.items == sorted(set(shell.items))


@pytest.mark.parametrize(("size_bytes", "n_held"), [(0, LIMITS.max_held), (300, 4)])
def test_batches_past_the_bound_are_fetched_later_while_the_publishers_life_is_not_verified(
    size_bytes: int, n_held: int
) -> None:
    stream, shell = joined()
    shell.take(stream.connected())
    for seq in range(3, 3 + 3 * LIMITS.max_held):
        shell.take(stream.live(seq, seq, ts=seq + 1, size_bytes=size_bytes))
    assert (shell.items, stream.counters.lost, stream.trust) == ([0, 1, 2], 0, Trust.REPLAYING)
    assert stream.held_bytes == n_held * size_bytes

    replay(stream, shell, 2)
    assert (shell.items[-1], stream.trust, stream.held_bytes) == (2 + n_held, Trust.LIVE, 0)
    live(stream, shell, 3 * LIMITS.max_held + 3)
    assert shell.requests[-1] == 3 + n_held


def test_unreadable_time_stamp_is_no_evidence_of_a_restart() -> None:
    stream, shell = make_stream(can_replay=False)
    shell.take(stream.live(0, 0, ts=0.0))
    shell.take(stream.live(0, 0, ts=5.0))
    assert (shell.resets, stream.counters.duplicates) == ([], 1)
