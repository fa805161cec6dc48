"""Streams that continue after snapshots, the pauses between these, and the messages of a snapshot socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.errors import SnapshotError
from kvatlas.events.recoverable import RecoverableStream
from kvatlas.events.recovery import CALM_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, Recovery
from kvatlas.events.snapshot_message import read_reply
from kvatlas.events.stream import Trust
from support.streams import LIMITS, Shell, live, replay

LIFE, OTHER = b"1" * 16, b"2" * 16


def gapped(*, can_replay: bool = False) -> tuple[RecoverableStream[int], Shell]:
    """Return a stream that has batches 0, 1 and 5, and has lost those between."""
    stream, shell = RecoverableStream[int](can_replay=can_replay, limits=LIMITS), Shell()
    shell.take(stream.identified(LIFE))
    live(stream, shell, 0, 1, 5)
    return stream, shell


def test_snapshot_takes_the_place_of_what_was_lost_and_batches_that_came_meanwhile_follow() -> None:
    stream, shell = gapped()
    assert (stream.wants_snapshot, stream.trust) == (True, Trust.PARTIAL)
    stream.await_snapshot()
    live(stream, shell, 6, 7, 8)
    assert (shell.items, stream.trust, stream.wants_snapshot) == ([0, 1, 5], Trust.REPLAYING, False)
    assert not stream.follows_from(5)
    assert stream.follows_from(6)
    shell.items.clear()  # the snapshot has replaced them
    shell.take(stream.recovered(8))
    live(stream, shell, 9)
    assert (shell.items, stream.trust, stream.wants_snapshot) == ([8, 9], Trust.LIVE, False)


def test_batches_are_applied_as_before_when_no_snapshot_comes() -> None:
    stream, shell = gapped()
    stream.await_snapshot()
    live(stream, shell, 6, 7)
    shell.take(stream.not_recovered())
    assert (shell.items, stream.trust, stream.wants_snapshot) == ([0, 1, 5, 6, 7], Trust.PARTIAL, True)


@pytest.mark.parametrize("can_replay", [False, True])
def test_hole_after_the_snapshot_is_handled_like_any_other(*, can_replay: bool) -> None:
    stream, shell = gapped(can_replay=can_replay)
    if can_replay:
        replay(stream, shell, 0, 1, 2, 3, 4)
        stream.damaged()
    stream.await_snapshot()
    live(stream, shell, 6, 9)
    shell.items.clear()
    shell.take(stream.recovered(7))
    if can_replay:
        replay(stream, shell, 7, 8)
        assert (shell.items, stream.trust) == ([7, 8, 9], Trust.LIVE)
    else:
        assert (shell.items, stream.trust, stream.wants_snapshot) == ([9], Trust.PARTIAL, True)


def test_snapshot_is_given_up_when_more_waits_than_may() -> None:
    stream, shell = gapped()
    stream.await_snapshot()
    live(stream, shell, *range(6, 7 + LIMITS.max_held))
    assert not stream.awaits_snapshot
    assert shell.items == [0, 1, 5, *range(6, 7 + LIMITS.max_held)]


def test_another_id_is_another_life_and_ends_the_wait() -> None:
    stream, shell = gapped()
    stream.await_snapshot()
    shell.take(stream.identified(OTHER))
    assert (len(shell.resets), stream.awaits_snapshot, stream.wants_snapshot) == (1, False, False)
    live(stream, shell, 0, 1)
    assert (shell.items, stream.trust, stream.position().life) == ([0, 1], Trust.LIVE, OTHER)


def test_new_connection_ends_the_wait_and_asks_anew() -> None:
    stream, shell = gapped()
    stream.await_snapshot()
    live(stream, shell, 6)
    stream.disconnected()
    assert not stream.wants_snapshot
    shell.take(stream.connected())
    assert stream.wants_snapshot


def test_publisher_without_id_is_never_asked() -> None:
    stream, shell = RecoverableStream[int](can_replay=False, limits=LIMITS), Shell()
    live(stream, shell, 0, 5)
    assert (stream.trust, stream.wants_snapshot) == (Trust.PARTIAL, False)


def test_id_survives_a_restart_of_this_process() -> None:
    stream, _ = gapped()
    later = RecoverableStream[int](can_replay=False, limits=LIMITS, position=stream.position())
    shell = Shell()
    shell.take(later.identified(LIFE))
    assert not shell.resets
    shell.take(later.identified(OTHER))
    assert len(shell.resets) == 1


@given(rng=st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_calm_time(rng: float) -> None:
    recovery, now, pauses = Recovery(lambda: rng), 0.0, list[float]()
    assert recovery.is_due(now=now)
    for _ in range(8):
        recovery.ended(now=now)
        began = now
        while not recovery.is_due(now=now):
            now += 0.125
        pauses.append(now - began)
    assert FIRST_PAUSE_S / 2 <= pauses[0] <= FIRST_PAUSE_S + 0.125
    assert LONGEST_PAUSE_S / 2 <= pauses[-1] <= LONGEST_PAUSE_S + 0.125
    assert pauses == sorted(pauses)
    now += CALM_S
    recovery.ended(now=now)
    assert recovery.is_due(now=now + FIRST_PAUSE_S)


def number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def test_reply_says_which_batch_follows_it() -> None:
    assert read_reply([number(41), LIFE, b"a", b"b"]) == (42, LIFE, [b"a", b"b"])
    assert read_reply([number(-1), LIFE]) == (0, LIFE, [])


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        pytest.param([], "malformed", id="empty"),
        pytest.param([number(1)], "malformed", id="no_id"),
        pytest.param([b"\0" * 7, LIFE], "malformed", id="short_number"),
        pytest.param([number(1), LIFE[:-1]], "malformed", id="short_id"),
        pytest.param([number(1 << 60), LIFE], "malformed", id="impossible_number"),
        pytest.param([number(-2), LIFE], "unavailable", id="unavailable"),
    ],
)
def test_reply_is_refused_with_a_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        read_reply(frames)
    assert refused.value.reason == reason


OPERATIONS = st.lists(
    st.sampled_from(["publish", "publish", "lose", "ask", "answer", "fail", "cut_off", "restart"]),
    max_size=40,
)


class World:
    """A publisher with snapshots, and a consumer without replay; items are life and number."""

    def __init__(self) -> None:
        self.stream, self.shell = RecoverableStream[int](can_replay=False, limits=LIMITS), Shell()
        self.life, self.published = 1, list[int]()

    def do(self, operation: str) -> None:
        stream, shell = self.stream, self.shell
        match operation:
            case "publish" | "lose":
                self.published.append(1000 * self.life + len(self.published))
                if operation == "publish":
                    shell.take(stream.identified(bytes([self.life]) * 16))
                    seq = len(self.published) - 1
                    shell.take(stream.live(seq, self.published[-1], ts=1e6 * self.life + seq + 1))
            case "ask" if stream.wants_snapshot:
                stream.await_snapshot()
            case "answer" if stream.awaits_snapshot and stream.life == bytes([self.life]) * 16:
                assert stream.follows_from(len(self.published))
                shell.items = list(self.published)
                shell.take(stream.recovered(len(self.published)))
            case "fail" if stream.awaits_snapshot:
                shell.take(stream.not_recovered())
            case "cut_off":
                stream.disconnected()
                shell.take(stream.connected())
            case "restart":
                self.life, self.published = self.life + 1, []
            case _:
                pass


@given(OPERATIONS)
def test_trusted_state_is_the_publishers_whatever_was_lost(operations: list[str]) -> None:
    world = World()
    for operation in [*operations, "publish"]:
        world.do(operation)
        if operation == "publish" and world.stream.trust is Trust.LIVE:
            assert world.shell.items == world.published
    for operation in ("ask", "answer", "publish"):
        world.do(operation)
    assert (world.stream.trust, world.shell.items) == (Trust.LIVE, world.published)
