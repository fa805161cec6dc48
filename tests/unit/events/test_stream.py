"""The publisher stream: gaps, duplicates, restarts, replay, and what is believed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvatlas.events.stamps import N_STAMPS
from kvatlas.events.stream import Action, Apply, PublisherStream, RequestReplay, Reset, StreamLimits, Trust

LIMITS = StreamLimits(max_held=50, max_held_bytes=1000, reply_timeout_s=2.0, backoff_s=0.5, max_attempts=3)


@dataclass
class Heard:
    """What a stream told its shell, batch items and actions apart."""

    items: list[int] = field(default_factory=list[int])
    requests: list[int] = field(default_factory=list[int])
    resets: list[str] = field(default_factory=list[str])

    def take(self, actions: list[Action[int]]) -> None:
        for action in actions:
            match action:
                case Apply(item=item):
                    self.items.append(item)
                case RequestReplay(start=start):
                    self.requests.append(start)
                case Reset(reason=reason):
                    self.resets.append(reason)
                    self.items.clear()


def make_stream(*, can_replay: bool = True) -> tuple[PublisherStream[int], Heard]:
    return PublisherStream[int](can_replay=can_replay, limits=LIMITS), Heard()


def live(stream: PublisherStream[int], heard: Heard, *seqs: int, life: int = 0) -> None:
    for seq in seqs:
        heard.take(stream.live(seq, seq, ts=1000.0 * life + seq + 1))


def replay(
    stream: PublisherStream[int], heard: Heard, *seqs: int, life: int = 0, now: float = 0, end: bool = True
) -> None:
    stream.replay_sent(now=now)
    for seq in seqs:
        heard.take(stream.replayed(seq, seq, ts=1000.0 * life + seq + 1, now=now))
    if end:
        heard.take(stream.replay_end(now=now))


def starve(stream: PublisherStream[int], heard: Heard) -> None:
    """Let every replay request go unanswered until the stream asks no more."""
    now = 0.0
    while stream.awaits_replay:
        stream.replay_sent(now=now)
        now += LIMITS.reply_timeout_s
        heard.take(stream.tick(now=now))
        now += 10
        heard.take(stream.tick(now=now))


def joined() -> tuple[PublisherStream[int], Heard]:
    """A stream that has verified an empty history and then heard batches 0 to 2."""
    stream, heard = make_stream()
    heard.take(stream.connected())
    replay(stream, heard)
    live(stream, heard, 0, 1, 2)
    heard.requests.clear()
    return stream, heard


def test_stream_is_dark_until_something_is_heard() -> None:
    stream, heard = make_stream()
    assert stream.trust is Trust.DARK
    heard.take(stream.connected())
    assert (stream.trust, heard.requests) == (Trust.DARK, [0])


def test_stream_is_live_when_history_from_the_start_was_applied() -> None:
    stream, heard = joined()
    assert (stream.trust, heard.items, stream.last_seq) == (Trust.LIVE, [0, 1, 2], 2)


def test_late_join_fetches_history_and_keeps_live_batches_meanwhile() -> None:
    stream, heard = make_stream()
    heard.take(stream.connected())
    live(stream, heard, 7, 8)
    assert (heard.items, stream.trust) == ([], Trust.REPLAYING)
    replay(stream, heard, *range(8))
    assert (heard.items, stream.trust) == ([*range(9)], Trust.LIVE)
    assert stream.counters.duplicates == 1


def test_gap_is_fetched_and_nothing_is_applied_twice() -> None:
    stream, heard = joined()
    live(stream, heard, 5)
    assert (heard.items, heard.requests, stream.trust) == ([0, 1, 2], [3], Trust.REPLAYING)
    replay(stream, heard, 3, 4, 5)
    live(stream, heard, 6)
    assert (heard.items, stream.trust, stream.counters.gaps) == ([*range(7)], Trust.LIVE, 1)


def test_gap_without_replay_leaves_partial_trust_and_goes_on() -> None:
    stream, heard = make_stream(can_replay=False)
    live(stream, heard, 0, 1, 4, 5)
    assert (heard.items, stream.trust, stream.counters.lost) == ([0, 1, 4, 5], Trust.PARTIAL, 2)


@pytest.mark.parametrize("can_replay", [True, False])
def test_duplicate_is_dropped(can_replay: bool) -> None:
    stream, heard = make_stream(can_replay=can_replay)
    live(stream, heard, 0, 1, 1, 0, 2)
    assert (heard.items, heard.resets, stream.counters.duplicates) == ([0, 1, 2], [], 2)


def test_reordered_batches_are_applied_in_order() -> None:
    stream, heard = joined()
    live(stream, heard, 4, 3)
    assert heard.items == [0, 1, 2, 3, 4]


def test_restart_resets_and_fetches_the_new_life_when_sequence_goes_back() -> None:
    stream, heard = joined()
    live(stream, heard, 1, life=1)
    assert (len(heard.resets), heard.requests, stream.epoch) == (1, [0], 1)
    replay(stream, heard, 0, 1, life=1)
    assert (heard.items, stream.trust) == ([0, 1], Trust.LIVE)


def test_restart_is_seen_when_the_clock_of_the_new_life_is_behind() -> None:
    stream, heard = joined()
    live(stream, heard, 0, life=-1)
    assert len(heard.resets) == 1


def test_restart_is_seen_on_reconnect_before_any_event() -> None:
    stream, heard = joined()
    stream.disconnected()
    assert stream.trust is Trust.STALE
    heard.take(stream.connected())
    assert heard.requests == [2]
    replay(stream, heard)
    assert (len(heard.resets), heard.requests) == (1, [2, 0])


def test_reconnect_to_the_same_life_fetches_what_was_missed() -> None:
    stream, heard = joined()
    stream.disconnected()
    heard.take(stream.connected())
    replay(stream, heard, 2, 3, 4)
    assert (heard.items, heard.resets, stream.trust) == ([0, 1, 2, 3, 4], [], Trust.LIVE)


def test_batch_that_overtakes_the_news_of_its_connection_waits_until_the_life_is_known() -> None:
    stream, heard = joined()
    stream.disconnected()
    live(stream, heard, 3, life=1)  # fits on what was applied, and is of another life
    assert (heard.items, heard.requests, stream.trust) == ([0, 1, 2], [2], Trust.REPLAYING)
    heard.take(stream.connected())
    replay(stream, heard, 2, life=1, end=False)
    assert (len(heard.resets), heard.requests[-1]) == (1, 0)
    replay(stream, heard, 0, 1, 2, 3, life=1)
    assert (heard.items, stream.trust) == ([0, 1, 2, 3], Trust.LIVE)


def test_batch_that_overtakes_the_news_of_its_connection_is_applied_and_trust_partial_without_replay() -> (
    None
):
    stream, heard = make_stream(can_replay=False)
    live(stream, heard, 0, 1)
    stream.disconnected()
    live(stream, heard, 2)
    assert (heard.items, stream.trust) == ([0, 1, 2], Trust.PARTIAL)


def restored(*, can_replay: bool = True, n_batches: int = 3) -> tuple[PublisherStream[int], Heard]:
    """A stream that goes on from where one stood that had applied the first batches of life 0."""
    before, heard = make_stream(can_replay=can_replay)
    live(before, heard, *range(n_batches))
    position = before.position()
    stream = PublisherStream[int](can_replay=can_replay, limits=LIMITS, position=position)
    assert stream.position() == position
    return stream, heard


def test_restored_stream_is_stale_and_keeps_its_numbers_until_it_is_connected() -> None:
    before, heard = joined()
    heard.take(before.restarted("told so"))
    replay(before, heard, 0, 1, life=1)
    stream = PublisherStream[int](can_replay=True, position=before.position())
    assert (stream.trust, stream.last_seq, stream.epoch) == (Trust.STALE, 1, 1)


def test_stream_that_had_heard_nothing_is_restored_as_at_the_start() -> None:
    stream, heard = restored(n_batches=0)
    heard.take(stream.connected())
    assert (stream.trust, heard.requests, stream.last_seq) == (Trust.DARK, [0], None)


def test_restored_stream_goes_on_behind_its_last_batch_in_the_same_life() -> None:
    stream, heard = restored()
    heard.take(stream.connected())
    assert (stream.trust, heard.requests) == (Trust.REPLAYING, [2])
    replay(stream, heard, 2, 3, 4)
    assert (heard.items, heard.resets, stream.trust) == ([*range(5)], [], Trust.LIVE)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((2, 3), id="same_number_of_another_life"),
        pytest.param((), id="history_that_ends_before"),
    ],
)
def test_restored_stream_starts_over_when_the_publisher_began_a_new_life(answer: tuple[int, ...]) -> None:
    stream, heard = restored()
    heard.take(stream.connected())
    replay(stream, heard, *answer[:1], life=1, end=not answer)
    assert (len(heard.resets), heard.requests, stream.epoch) == (1, [2, 0], 1)
    replay(stream, heard, 0, 1, life=1)
    assert (heard.items, stream.trust) == ([0, 1], Trust.LIVE)


def test_restored_stream_keeps_what_it_knows_and_is_partial_when_history_was_cut_since() -> None:
    stream, heard = restored()
    heard.take(stream.connected())
    for attempt in range(LIMITS.max_attempts):
        replay(stream, heard, 7, 8, now=10.0 * attempt)
        heard.take(stream.tick(now=10.0 * attempt + 5))
    assert (heard.items, heard.resets, stream.trust) == ([0, 1, 2, 7, 8], [], Trust.PARTIAL)


def test_restored_stream_is_partial_when_nobody_can_say_what_was_published_meanwhile() -> None:
    stream, heard = restored(can_replay=False)
    heard.take(stream.connected())
    assert stream.trust is Trust.PARTIAL
    live(stream, heard, 3)
    assert (heard.items, stream.trust) == ([0, 1, 2, 3], Trust.PARTIAL)
    live(stream, heard, 1, life=1)
    assert len(heard.resets) == 1


def test_restored_stream_is_partial_and_goes_on_when_its_replay_server_never_answers() -> None:
    stream, heard = restored()
    heard.take(stream.connected())
    starve(stream, heard)
    live(stream, heard, 3)
    assert (heard.items, stream.trust) == ([0, 1, 2, 3], Trust.PARTIAL)


def test_restored_stream_stays_partial_when_it_was() -> None:
    before, heard = make_stream(can_replay=False)
    live(before, heard, 0, 1, 4)
    stream = PublisherStream[int](can_replay=True, limits=LIMITS, position=before.position())
    heard.take(stream.connected())
    replay(stream, heard, 4)
    assert (stream.trust, heard.resets) == (Trust.PARTIAL, [])


def test_restored_stream_takes_batches_before_its_stamps_for_duplicates_unless_they_are_newer() -> None:
    stream, heard = restored(can_replay=False, n_batches=N_STAMPS + 10)
    heard.take(stream.connected())
    live(stream, heard, 3)  # its stamp is no longer kept, and older than the newest
    assert (heard.resets, stream.counters.duplicates) == ([], 1)
    live(stream, heard, 3, life=2)
    assert len(heard.resets) == 1


def test_silent_restart_is_taken_on_evidence_from_elsewhere() -> None:
    stream, heard = joined()
    heard.take(stream.restarted("process start time changed"))
    live(stream, heard, 3, life=1)
    replay(stream, heard, 0, 1, 2, 3, life=1)
    assert (heard.items, heard.resets) == ([0, 1, 2, 3], ["process start time changed"])


def test_replay_is_repeated_from_the_first_hole_when_answers_were_dropped() -> None:
    stream, heard = joined()
    live(stream, heard, 20)
    replay(stream, heard, 3, 4, 9, 10)
    assert heard.requests == [3, 5]
    replay(stream, heard, *range(5, 21))
    assert (heard.items, stream.trust) == ([*range(21)], Trust.LIVE)


def test_truncated_history_is_given_up_and_marked_partial() -> None:
    stream, heard = make_stream()
    heard.take(stream.connected())
    for attempt in range(LIMITS.max_attempts):
        replay(stream, heard, 7, 8, 9, now=10.0 * attempt)
        heard.take(stream.tick(now=10.0 * attempt + 5))
    assert (heard.items, stream.trust, stream.counters.lost) == ([7, 8, 9], Trust.PARTIAL, 7)
    live(stream, heard, 10)
    assert heard.items[-1] == 10


def test_publisher_that_counts_from_one_is_complete() -> None:
    stream, heard = make_stream()
    heard.take(stream.connected())
    for attempt in range(LIMITS.max_attempts):
        replay(stream, heard, 1, 2, now=10.0 * attempt)
        heard.take(stream.tick(now=10.0 * attempt + 5))
    assert (heard.items, stream.trust, stream.counters.lost) == ([1, 2], Trust.LIVE, 0)


def test_missing_end_marker_times_out_and_keeps_what_came() -> None:
    stream, heard = joined()
    live(stream, heard, 6)
    replay(stream, heard, 3, 4, 5, now=1.0, end=False)
    assert (heard.items, stream.awaits_replay) == ([*range(7)], True)
    starve(stream, heard)
    assert (heard.items, stream.awaits_replay) == ([*range(7)], False)


def test_replay_server_that_never_answers_does_not_blind_the_publisher() -> None:
    stream, heard = make_stream()
    heard.take(stream.connected())
    starve(stream, heard)
    live(stream, heard, 0, 1)
    assert (heard.items, stream.trust) == ([0, 1], Trust.PARTIAL)
    heard.take(stream.check())
    replay(stream, heard, 1)
    assert stream.trust is Trust.LIVE


def test_request_that_waits_for_a_slot_does_not_time_out() -> None:
    stream, heard = make_stream()
    heard.take(stream.connected())
    heard.take(stream.tick(now=1e6))
    assert (heard.requests, stream.counters.replay_failures) == ([0], 0)


def test_routine_check_does_not_lower_trust_unless_something_was_missed() -> None:
    stream, heard = joined()
    heard.take(stream.check())
    assert (stream.trust, heard.requests) == (Trust.LIVE, [2])
    live(stream, heard, 4)
    assert stream.trust is Trust.REPLAYING
    replay(stream, heard, 2, 3, 4)
    assert (stream.trust, heard.items) == (Trust.LIVE, [*range(5)])


def test_history_cut_short_under_a_lasting_connection_is_no_new_life() -> None:
    stream, heard = joined()
    heard.take(stream.check())
    replay(stream, heard)
    assert (heard.items, heard.resets, stream.trust) == ([0, 1, 2], [], Trust.PARTIAL)


def test_idle_check_of_a_connection_nobody_watches_tells_of_a_new_life() -> None:
    stream, heard = joined()
    heard.take(stream.check(same_connection=False))
    replay(stream, heard)
    assert len(heard.resets) == 1


def test_reconnect_without_replay_is_partial_for_nobody_can_say_what_was_missed() -> None:
    stream, heard = make_stream(can_replay=False)
    heard.take(stream.connected())
    live(stream, heard, 0, 1)
    assert stream.trust is Trust.LIVE
    stream.disconnected()
    heard.take(stream.connected())
    live(stream, heard, 2)
    assert (stream.trust, heard.items) == (Trust.PARTIAL, [0, 1, 2])


def test_damage_is_partial_until_a_new_life() -> None:
    stream, heard = joined()
    stream.damaged()
    trusts = [stream.trust]
    heard.take(stream.restarted("told so"))
    replay(stream, heard, 0, life=1)
    assert [*trusts, stream.trust] == [Trust.PARTIAL, Trust.LIVE]


def test_held_batches_are_bounded() -> None:
    stream, heard = joined()
    live(stream, heard, *range(10, 10 + 2 * LIMITS.max_held))
    assert stream.counters.lost >= 7
    replay(stream, heard, *range(10, 10 + 2 * LIMITS.max_held))
    assert heard.items[-1] == 9 + 2 * LIMITS.max_held
    assert heard.items == sorted(set(heard.items))


def test_held_batches_are_bounded_in_bytes() -> None:
    stream, heard = joined()
    for seq in (10, 11, 12):
        heard.take(stream.live(seq, seq, ts=seq + 1, size_bytes=400))
    assert heard.items == [0, 1, 2, 10, 11, 12]
    assert (stream.counters.lost, stream.held_bytes) == (7, 0)


def test_large_batches_take_the_place_of_small_ones_with_the_holes_before_them() -> None:
    stream, heard = joined()
    for seq in range(10, 10 + LIMITS.max_held, 2):
        heard.take(stream.live(seq, seq, ts=seq + 1, size_bytes=1))
    assert heard.items == [0, 1, 2]
    for seq in range(100, 120, 2):
        heard.take(stream.live(seq, seq, ts=seq + 1, size_bytes=600))
        assert stream.held_bytes <= LIMITS.max_held_bytes
    assert heard.items[-1] == 116
    assert heard.items == sorted(set(heard.items))


@pytest.mark.parametrize(("size_bytes", "n_held"), [(0, LIMITS.max_held), (300, 4)])
def test_batches_past_the_bound_are_fetched_later_while_the_publishers_life_is_not_verified(
    size_bytes: int, n_held: int
) -> None:
    stream, heard = joined()
    heard.take(stream.connected())
    for seq in range(3, 3 + 3 * LIMITS.max_held):
        heard.take(stream.live(seq, seq, ts=seq + 1, size_bytes=size_bytes))
    assert (heard.items, stream.counters.lost, stream.trust) == ([0, 1, 2], 0, Trust.REPLAYING)
    assert stream.held_bytes == n_held * size_bytes

    replay(stream, heard, 2)
    assert (heard.items[-1], stream.trust, stream.held_bytes) == (2 + n_held, Trust.LIVE, 0)
    live(stream, heard, 3 * LIMITS.max_held + 3)
    assert heard.requests[-1] == 3 + n_held


def test_unreadable_time_stamp_is_no_evidence_of_a_restart() -> None:
    stream, heard = make_stream(can_replay=False)
    heard.take(stream.live(0, 0, ts=0.0))
    heard.take(stream.live(0, 0, ts=5.0))
    assert (heard.resets, stream.counters.duplicates) == ([], 1)
