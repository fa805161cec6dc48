from __future__ import annotations

import json
from typing import Any

import pytest

from kvatlas.fleet.kubernetes.client.backoff import MAX_RETRY_AFTER_S, Backoff, Timing
from kvatlas.fleet.kubernetes.client.errors import Failure
from kvatlas.fleet.kubernetes.client.list_watch import (
    MAX_FRUITLESS,
    MAX_OBJECTS,
    PAGE_SIZE,
    ListPage,
    ListWatch,
    Pause,
    Step,
    Watch,
)
from kvatlas.fleet.kubernetes.client.wire import ObjectMeta, Wire

TIMING = Timing(
    first_delay_s=1.0, max_delay_s=4.0, healthy_s=10, short_watch_s=1, watch_s=100, slack_s=5, missing_s=30
)
FIRST = ListPage(PAGE_SIZE, "")
GONE = Failure("expired", "too old", status=410)
BROKEN = Failure("cut", "broke off")


class Thing(Wire, frozen=True):
    metadata: ObjectMeta
    size: int = 0


def copy() -> ListWatch[Thing]:
    return ListWatch(Thing, timing=TIMING, rng=lambda: 0.5)


def thing(name: str, version: str = "1", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version}, **fields}


def page(*items: dict[str, Any], position: str = "10", after: str = "") -> bytes:
    meta = {"resourceVersion": position} | ({"continue": after} if after else {})
    return json.dumps({"kind": "ThingList", "metadata": meta, "items": list(items) or None}).encode()


def line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def error(code: int, reason: str, **details: int) -> bytes:
    return line(
        "ERROR", {"kind": "Status", "code": code, "reason": reason, "message": "m", "details": details}
    )


def listed(*items: dict[str, Any]) -> ListWatch[Thing]:
    made = copy()
    made.page(page(*items), now=0)
    return made


def watching(*items: dict[str, Any], now: float = 0) -> ListWatch[Thing]:
    made = listed(*items)
    made.opened(now=now)
    return made


def names(made: ListWatch[Thing]) -> set[str]:
    return set(made.objects)


def watch_from(position: str) -> Step:
    return Watch(position, 150, 155)


def test_copy_asks_for_the_first_page_when_new() -> None:
    assert copy().step(0) == FIRST
    assert not copy().synced


def test_copy_watches_from_the_list_when_listed() -> None:
    made = listed(thing("a"), thing("b"))
    assert (names(made), made.synced, made.n_lists) == ({"a", "b"}, True, 1)
    assert made.step(0) == watch_from("10")


def test_copy_asks_for_the_next_page_when_there_is_one() -> None:
    made = copy()
    made.page(page(thing("a"), after="t1"), now=0)
    assert (made.step(0), made.synced, names(made)) == (ListPage(PAGE_SIZE, "t1"), False, set())
    made.page(page(thing("b")), now=0)
    assert (made.step(0), names(made)) == (watch_from("10"), {"a", "b"})


def test_copy_forgets_what_a_new_list_lacks_when_deletions_were_missed() -> None:
    made = watching(thing("a"), thing("b"))
    made.failed(GONE, now=0)
    assert names(made) == {"a", "b"}  # what was known stays until the list is whole
    made.page(page(thing("c"), after="t", position="20"), now=2)
    assert names(made) == {"a", "b"}
    made.page(page(thing("d"), position="20"), now=2)
    assert (names(made), made.step(2)) == ({"c", "d"}, watch_from("20"))


def test_copy_lists_in_one_go_when_a_page_token_expired() -> None:
    made = copy()
    made.page(page(thing("a"), after="t1"), now=0)
    made.failed(GONE, now=0)
    assert made.step(9) == ListPage(None, "")
    made.page(page(thing("b")), now=9)
    assert names(made) == {"b"}
    made.failed(GONE, now=9)
    assert made.step(99) == FIRST


@pytest.mark.parametrize(
    ("event", "expected", "position"),
    [
        pytest.param(line("ADDED", thing("b", "11")), {"a": 0, "b": 0}, "11", id="added"),
        pytest.param(line("MODIFIED", thing("a", "11", size=2)), {"a": 2}, "11", id="modified"),
        pytest.param(line("DELETED", thing("a", "11")), dict[str, int](), "11", id="deleted"),
        pytest.param(line("DELETED", thing("x", "11")), {"a": 0}, "11", id="deleted_unknown"),
        pytest.param(
            line("BOOKMARK", {"metadata": {"resourceVersion": "15"}}), {"a": 0}, "15", id="bookmark"
        ),
        pytest.param(line("NEWER", thing("z", "11")), {"a": 0}, "11", id="unknown_type"),
        pytest.param(line("ADDED", {"metadata": {"name": "b"}}), {"a": 0, "b": 0}, "10", id="no_position"),
        pytest.param(b"\n\n", {"a": 0}, "10", id="blank_lines"),
        pytest.param(line("ADDED", thing("b", "11", size="big")), {"a": 0}, "11", id="unreadable_new"),
        pytest.param(line("MODIFIED", thing("a", "11", size="big")), {"a": 0}, "11", id="unreadable_known"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_copy_follows_when_events_come(
    event: bytes, expected: dict[str, int], position: str, size: int
) -> None:
    made = watching(thing("a"))
    for start in range(0, len(event), size):
        assert made.receive(event[start : start + size], now=1)
    assert {name: each.size for name, each in made.objects.items()} == expected
    made.ended(now=50)
    assert made.step(50) == watch_from(position)
    assert made.n_rejected == event.count(b"big")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(line("ADDED", thing("b", "11")), {"b"}, id="added"),
        pytest.param(line("MODIFIED", thing("a", "11")), {"a"}, id="modified"),
        pytest.param(line("DELETED", thing("a", "11")), {"a"}, id="deleted"),
        pytest.param(line("DELETED", thing("x", "11")), set[str](), id="deleted_unknown"),
        pytest.param(line("MODIFIED", thing("a", "11", size="big")), set[str](), id="unreadable"),
        pytest.param(line("BOOKMARK", {"metadata": {"resourceVersion": "15"}}), set[str](), id="bookmark"),
    ],
)
def test_only_what_an_event_changed_counts_as_changed(event: bytes, expected: set[str]) -> None:
    made = watching(*(thing(name) for name in ("a", "c", "d")))
    assert set(made.changed) == {"a", "c", "d"}
    made.forget_changes()
    assert made.receive(event, now=1)
    assert set(made.changed) == expected


def test_what_differs_counts_as_changed_when_listed_again() -> None:
    made = watching(thing("a"), thing("b"), thing("c"))
    made.forget_changes()
    made.failed(GONE, now=0)
    made.page(page(thing("a"), thing("b", "2"), after="t", position="20"), now=2)
    assert set(made.changed) == set()
    made.page(page(thing("d"), position="20"), now=2)
    assert set(made.changed) == {"b", "c", "d"}


def test_copy_keeps_what_it_knew_when_a_listed_object_is_unreadable() -> None:
    made = listed(thing("a", size=3), thing("b"))
    made.failed(GONE, now=0)
    made.page(page(thing("a", size="big"), thing("c", size="big"), position="20"), now=5)
    assert {name: each.size for name, each in made.objects.items()} == {"a": 3}
    assert made.n_rejected == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"nonsense\n", "malformed", id="no_json"),
        pytest.param(
            b'{"type": "ADDED", "object": ' + b"[" * 100_000 + b"\n", "malformed", id="nested_deeply"
        ),
        pytest.param(b'{"type": "ADDED"}\n', "malformed", id="no_object"),
        pytest.param(b'{"type": "ADDED", "object": {}}\n', "malformed", id="no_metadata"),
        pytest.param(line("ADDED", {"metadata": {}}), "malformed", id="no_name"),
        pytest.param(b'{"type": "\xff", "object": {"metadata": {}}}\n', "malformed", id="no_utf8"),
        pytest.param(line("ERROR", {}), "malformed", id="unreadable_error"),
        pytest.param(line("ERROR", {"code": "x"}), "malformed", id="odd_error"),
        pytest.param(error(500, "InternalError"), "http_status", id="server_error"),
        pytest.param(error(410, "Expired"), "expired", id="expired"),
        pytest.param(b"x" * (8 * 2**20 + 1), "malformed", id="endless_line"),
    ],
)
def test_watch_is_given_up_when_it_says_something_wrong(data: bytes, reason: str) -> None:
    made = watching(thing("a"))
    assert not made.receive(data, now=2)
    assert made.problem is not None
    assert (made.problem.reason, names(made), made.n_failures) == (reason, {"a"}, {reason: 1})
    assert made.step(2) == Pause(1.0)
    assert made.step(3) == (FIRST if reason == "expired" else watch_from("10"))


def test_watch_resumes_without_pause_when_the_server_ends_it_in_time() -> None:
    made = watching()
    made.ended(now=100)
    assert (made.step(100), made.problem, made.n_lists) == (watch_from("10"), None, 1)


@pytest.mark.parametrize(
    ("data", "now", "reason"),
    [pytest.param(b"", 0.9, "short", id="at_once"), pytest.param(b'{"type', 50, "cut", id="inside_a_line")],
)
def test_watch_resumes_after_a_pause_when_the_end_is_odd(data: bytes, now: float, reason: str) -> None:
    made = watching()
    made.receive(data, now=now)
    made.ended(now=now)
    assert isinstance(made.step(now), Pause)
    assert made.n_failures == {reason: 1}
    assert made.step(now + 1) == watch_from("10")


def test_copy_is_listed_anew_when_watches_break_and_bring_nothing() -> None:
    made, now = listed(), 0.0
    for _ in range(MAX_FRUITLESS):
        assert made.step(now) == watch_from("10")
        made.failed(BROKEN, now=now)
        now += 10
    assert made.step(now) == FIRST


def test_copy_is_not_listed_anew_when_broken_watches_bring_something() -> None:
    made, now = listed(), 0.0
    for number in range(3 * MAX_FRUITLESS):
        made.opened(now=now)
        made.receive(line("ADDED", thing("a", f"1{number}")), now=now)
        made.failed(BROKEN, now=now)
        now += 10
        assert made.step(now) == watch_from(f"1{number}")


@pytest.mark.parametrize("status", [404, 410])
def test_copy_is_listed_at_the_next_try_when_a_watch_is_refused_for_good(status: int) -> None:
    made = listed()
    made.failed(Failure("http_status", "no", status=status), now=0)
    assert made.step(1) == FIRST


def test_pauses_double_up_to_a_limit_when_failures_go_on() -> None:
    made, waits, now = copy(), list[float](), 0.0
    for _ in range(5):
        made.failed(BROKEN, now=now)
        step = made.step(now)
        assert isinstance(step, Pause)
        waits.append(step.seconds)
        now += step.seconds
    assert waits == [1, 2, 4, 4, 4]


def test_pauses_start_over_when_a_watch_lived_long_enough() -> None:
    made = watching()
    made.failed(BROKEN, now=9)
    made.opened(now=20)
    made.failed(BROKEN, now=29)
    assert made.step(29) == Pause(2.0)
    made.opened(now=31)
    made.failed(BROKEN, now=41)
    assert made.step(41) == Pause(1.0)


def test_pauses_start_over_when_a_watch_brought_something() -> None:
    made = watching()
    for now in range(5):
        made.opened(now=now)
        made.receive(line("ADDED", thing("a", f"1{now}")), now=now)
        made.failed(BROKEN, now=now)
        assert made.step(now) == Pause(1.0)


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        pytest.param(0.1, 1.0, id="less_than_ours"),
        pytest.param(7.0, 7.0, id="more"),
        pytest.param(1e9, MAX_RETRY_AFTER_S, id="absurd"),
    ],
)
def test_pause_is_as_long_as_the_server_asks_when_it_does(asked: float, waited: float) -> None:
    assert Backoff(TIMING, lambda: 0.5).failed(Failure("http_status", "no", retry_after_s=asked)) == waited


def test_pause_follows_the_server_when_the_watch_says_how_long() -> None:
    made = watching()
    assert not made.receive(error(504, "Timeout", retryAfterSeconds=7), now=0)
    assert made.step(0) == Pause(7.0)


def test_copy_is_woken_once_when_failures_go_on_and_again_after_success() -> None:
    made = watching()
    for now, woken in ((0, True), (10, False)):
        made.failed(BROKEN, now=now)
        made.wake()
        assert isinstance(made.step(now), Watch) == woken
    made.opened(now=20)
    made.receive(line("ADDED", thing("a")), now=20)
    made.failed(BROKEN, now=20)
    made.wake()
    assert made.step(20) == watch_from("1")


def test_silent_watch_is_replaced_within_half_a_minute_when_the_timing_is_the_usual_one() -> None:
    made = ListWatch(Thing, timing=Timing(), rng=lambda: 0.999)
    made.page(page(), now=0)
    step = made.step(0)
    assert isinstance(step, Watch)
    made.opened(now=0)
    made.failed(Failure("timeout", "silent"), now=step.deadline_s)
    pause = made.step(step.deadline_s)
    assert isinstance(pause, Pause)
    assert step.deadline_s + pause.seconds < 30
    assert step.timeout_s < step.deadline_s


@pytest.mark.parametrize(("draw", "waited"), [(0.0, 0.5), (0.999, 1.499)])
def test_pauses_are_spread_when_several_pickers_fail_together(draw: float, waited: float) -> None:
    assert Backoff(TIMING, lambda: draw).failed(BROKEN) == pytest.approx(waited)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="cut"),
        pytest.param(b'{"metadata": {}, "more": ' + b"[" * 100_000, id="nested_deeply"),
        pytest.param(b'{"metadata": {}, "items": []}', id="no_position"),
        pytest.param(page({"metadata": {}}), id="no_name"),
        pytest.param(page({"size": "big"}), id="no_metadata"),
    ],
)
def test_list_is_asked_for_again_when_it_is_malformed(body: bytes) -> None:
    made = copy()
    made.page(body, now=0)
    assert (made.synced, made.n_failures, made.step(5)) == (False, {"malformed": 1}, FIRST)


def test_list_is_given_up_when_its_pages_go_in_circles() -> None:
    made = copy()
    for _ in range(2):
        made.page(page(thing("a"), after="t"), now=0)
    assert (made.n_failures, made.step(5)) == ({"malformed": 1}, FIRST)


def test_list_is_given_up_when_it_is_endless() -> None:
    made = copy()
    body = page(*[thing(f"t{number}") for number in range(MAX_OBJECTS + 1)])
    made.page(body, now=0)
    assert (made.n_failures, len(made.objects)) == ({"malformed": 1}, 0)


def test_copy_is_emptied_when_the_kind_is_long_gone() -> None:
    made = listed(thing("a"))
    made.failed(Failure("http_status", "not found", status=404), now=0)
    made.failed(Failure("http_status", "not found", status=404), now=5)
    made.failed(BROKEN, now=20)
    made.failed(Failure("http_status", "not found", status=404), now=30)
    made.failed(Failure("http_status", "not found", status=404), now=59)
    assert names(made) == {"a"}
    made.failed(Failure("http_status", "not found", status=404), now=60)
    assert names(made) == set()


def test_copy_stays_when_a_proxy_does_not_find_the_server() -> None:
    made = listed(thing("a"))
    for now in range(100):
        made.failed(Failure("http_status", "not found", status=404, of_proxy=True), now=now)
    assert names(made) == {"a"}


def test_copy_stays_when_the_question_changes_until_it_is_answered() -> None:
    made = watching(thing("a"))
    made.failed(BROKEN, now=0)
    made.restart()
    assert (made.step(0), made.synced, names(made)) == (FIRST, False, {"a"})
    made.page(page(thing("b")), now=1)
    assert (made.synced, names(made)) == (True, {"b"})


def test_problem_ends_when_a_watch_is_accepted() -> None:
    made = listed()
    made.failed(BROKEN, now=0)
    assert made.problem == BROKEN
    made.opened(now=2)
    assert made.problem is None
