"""Pauses before connecting again, and what is logged meanwhile."""

from __future__ import annotations

from itertools import islice, repeat

from kvatlas.app.replicas.outage import LONGEST_PAUSE_S, MAX_LINES, PAUSE_S, REPEAT_S, Outage


def test_pauses_double_until_a_connection_has_lasted() -> None:
    outage = Outage()
    assert [outage.pause_s() for _ in range(3)] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert list(islice((outage.pause_s() for _ in repeat(None)), 10))[-1] == LONGEST_PAUSE_S
    outage.end()
    assert outage.pause_s() == PAUSE_S


def test_line_is_logged_once_then_rarely_and_anew_in_the_next_outage() -> None:
    now = 0.0
    outage = Outage(lambda: now)
    assert [outage.is_over, outage.says("a"), outage.says("b"), outage.says("a")] == [True, True, True, False]
    now = REPEAT_S
    assert [outage.is_over, outage.says("a"), outage.says("a")] == [False, True, False]
    outage.end()
    assert [outage.is_over, outage.says("a")] == [True, True]


def test_lines_that_always_differ_are_bounded() -> None:
    outage = Outage()
    assert sum(outage.says(str(number)) for number in range(100)) == MAX_LINES
