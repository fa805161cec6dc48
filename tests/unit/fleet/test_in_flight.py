"""Requests in flight: every booking counts once, in any order and number of calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvatlas.fleet.in_flight import SETTLE_S, UNSEEN_S, Booking, InFlight
from kvatlas.scorers.core.model import IDLE, InFlightLoad, Load


def test_tokens_are_in_flight_until_the_answer_begins_and_requests_until_it_ends() -> None:
    accounts = InFlight()
    booking = accounts.book("e", tokens=100, now=5.0)
    loads = [accounts.of("e")]
    booking.begun()
    loads.append(accounts.of("e"))
    booking.ended()
    loads.append(accounts.of("e"))

    assert loads == [InFlightLoad(1, 100), InFlightLoad(1, 0), InFlightLoad(0, 0)]
    assert booking.at == 5.0


def test_request_that_never_began_is_released_whole() -> None:
    accounts = InFlight()
    accounts.book("e", tokens=100, now=0.0).ended()

    assert accounts.of("e") == InFlightLoad()


def test_endpoint_added_again_starts_empty_and_old_bookings_do_not_touch_it() -> None:
    accounts = InFlight()
    old = accounts.book("e", tokens=7, now=0.0)
    accounts.forget("e")
    accounts.forget("unknown")
    accounts.book("e", tokens=5, now=0.0)
    old.ended()

    assert accounts.of("e") == InFlightLoad(1, 5)


def settled(accounts: InFlight, load: Load | None, *, now: float = 1000.0) -> InFlightLoad:
    accounts.settle(lambda _: load, now=now)
    return accounts.of("e")


def unseen(*ages_s: float, tokens: int = 10) -> InFlight:
    """Book unseen requests that have these ages at 1000 s, with `tokens` each."""
    accounts = InFlight()
    for age_s in ages_s:
        accounts.book("e", tokens=tokens, now=1000.0 - age_s).unseen()
    return accounts


@pytest.mark.parametrize(
    ("waiting", "running", "left"),
    [
        pytest.param(0, 0, InFlightLoad(0, 0), id="all_gone"),
        pytest.param(0, 2, InFlightLoad(2, 0), id="running_ones_have_begun"),
        pytest.param(1, 1, InFlightLoad(2, 10), id="waiting_ones_have_not"),
        pytest.param(9, 9, InFlightLoad(3, 30), id="room_for_all"),
    ],
)
def test_unseen_requests_end_when_the_endpoint_has_no_room_for_them(
    waiting: int, running: int, left: InFlightLoad
) -> None:
    load = Load(waiting=waiting, running=running, kv_utilization=0.0, updated_at=1000.0)

    assert settled(unseen(3, 2, 1), load) == left


@pytest.mark.parametrize(
    ("waiting", "running", "begun"),
    [
        pytest.param(0, 0, "abc", id="all_gone"),
        pytest.param(0, 2, "abc", id="gone_and_running"),
        pytest.param(1, 1, "ab", id="one_waits"),
        pytest.param(3, 0, "", id="all_wait"),
    ],
)
def test_load_shows_which_unseen_requests_have_begun(waiting: int, running: int, begun: str) -> None:
    accounts, found = InFlight(), list[str]()
    for age_s, name in ((3, "a"), (2, "b"), (1, "c")):
        accounts.book("e", tokens=10, now=1000.0 - age_s).unseen(partial(found.append, name))

    for now in (1000.0, 1001.0):
        settled(accounts, Load(waiting, running, 0.0, updated_at=now))
    assert found == list(begun)

    settled(accounts, None, now=2000.0)  # too old, and nothing is known of it
    assert found == list(begun)
    assert accounts.of("e") == IDLE


def test_requests_that_may_not_have_arrived_are_left_alone() -> None:
    load = Load(waiting=0, running=0, kv_utilization=0.0, updated_at=1000.0)

    assert settled(unseen(SETTLE_S / 2, 2), load) == InFlightLoad(1, 10)


def test_load_of_before_tells_nothing() -> None:
    accounts = unseen(1)

    assert settled(accounts, Load(0, 0, 0.0, updated_at=999.0)) == InFlightLoad(1, 10)
    assert settled(accounts, Load(0, 0, 0.0, updated_at=1001.0)) == InFlightLoad(0, 0)


def test_unseen_requests_end_in_time_where_no_load_is_known() -> None:
    assert settled(unseen(UNSEEN_S - 1, UNSEEN_S), None) == InFlightLoad(1, 10)


class Accounting(RuleBasedStateMachine):
    """State machine against a list of open bookings; unseen ones in order of booking."""

    bookings: Bundle[Booking] = Bundle("bookings")

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, InFlightLoad] = {}
        self.accounts = InFlight(on_change=self.shown.__setitem__)
        self.now = 1000.0
        self.open: dict[Booking, Open] = {}

    @rule(target=bookings, endpoint=st.sampled_from("abc"), tokens=st.integers(0, 1000))
    def book(self, endpoint: str, tokens: int) -> Booking:
        booking = self.accounts.book(endpoint, tokens=tokens, now=self.now)
        self.open[booking] = Open(endpoint, tokens)
        return booking

    @rule(booking=bookings)
    def begin(self, booking: Booking) -> None:
        booking.begun()
        if booking in self.open:
            self.open[booking].tokens = 0

    @rule(booking=bookings)
    def end(self, booking: Booking) -> None:
        booking.ended()
        self.open.pop(booking, None)

    @rule(booking=bookings)
    def hide(self, booking: Booking) -> None:
        booking.unseen()
        if booking in self.open:
            self.open[booking].is_unseen = True

    @rule(booking=consumes(bookings))
    def end_for_good(self, booking: Booking) -> None:
        self.end(booking)

    @rule(endpoint=st.sampled_from("abc"))
    def forget(self, endpoint: str) -> None:
        self.accounts.forget(endpoint)
        self.open = {booking: entry for booking, entry in self.open.items() if entry.endpoint != endpoint}

    @rule(seconds=st.sampled_from([0.1, SETTLE_S, 5.0, UNSEEN_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(endpoint=st.sampled_from("abc"), waiting=st.integers(0, 3), running=st.integers(0, 3))
    def scrape(self, endpoint: str, waiting: int, running: int) -> None:
        self.now += 0.01
        load = Load(waiting=waiting, running=running, kv_utilization=0.0, updated_at=self.now)
        self.accounts.settle({endpoint: load}.get, now=self.now)
        hidden = [
            booking
            for booking, entry in self.open.items()
            if entry.is_unseen and entry.endpoint == endpoint and booking.at <= self.now - SETTLE_S
        ]
        while len(hidden) > waiting + running:
            del self.open[hidden.pop(0)]
        while len(hidden) > waiting:
            self.open[hidden.pop(0)].tokens = 0
        for booking, entry in list(self.open.items()):
            if entry.is_unseen and booking.at <= self.now - UNSEEN_S:
                del self.open[booking]

    @invariant()
    def loads_are_the_sums_of_open_bookings(self) -> None:
        for endpoint in "abc":
            entries = [each for each in self.open.values() if each.endpoint == endpoint]
            wanted = InFlightLoad(len(entries), sum(each.tokens for each in entries))
            assert self.accounts.of(endpoint) == wanted
            assert self.shown.get(endpoint, IDLE) == wanted
            assert self.accounts.n_unseen(endpoint) == sum(each.is_unseen for each in entries)


@dataclass
class Open:
    """An open booking of the model."""

    endpoint: str
    tokens: int
    is_unseen: bool = False


TestAccounting = Accounting.TestCase
