"""Accounts of what is in flight: every booking counts once, whatever is called how often and in which order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvatlas.scorers.in_flight import Booking, InFlight
from kvatlas.scorers.model import InFlightLoad


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


class Accounting(RuleBasedStateMachine):
    """Against a list of open bookings."""

    bookings: Bundle[Booking] = Bundle("bookings")

    def __init__(self) -> None:
        super().__init__()
        self.accounts = InFlight()
        self.open: dict[Booking, tuple[str, int]] = {}

    @rule(target=bookings, endpoint=st.sampled_from("abc"), tokens=st.integers(0, 1000))
    def book(self, endpoint: str, tokens: int) -> Booking:
        booking = self.accounts.book(endpoint, tokens=tokens, now=0.0)
        self.open[booking] = (endpoint, tokens)
        return booking

    @rule(booking=bookings)
    def begin(self, booking: Booking) -> None:
        booking.begun()
        if booking in self.open:
            self.open[booking] = (self.open[booking][0], 0)

    @rule(booking=bookings)
    def end(self, booking: Booking) -> None:
        booking.ended()
        self.open.pop(booking, None)

    @rule(booking=consumes(bookings))
    def end_for_good(self, booking: Booking) -> None:
        self.end(booking)

    @rule(endpoint=st.sampled_from("abc"))
    def forget(self, endpoint: str) -> None:
        self.accounts.forget(endpoint)
        self.open = {booking: entry for booking, entry in self.open.items() if entry[0] != endpoint}

    @invariant()
    def loads_are_the_sums_of_open_bookings(self) -> None:
        for endpoint in "abc":
            entries = [tokens for name, tokens in self.open.values() if name == endpoint]
            assert self.accounts.of(endpoint) == InFlightLoad(len(entries), sum(entries))


TestAccounting = Accounting.TestCase
