"""Joint model: what is under way on both servers of a pair, and what is learned from its times."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.scheduler import Scheduler
from kvatlas.scorers.core.topology import LABELS
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.handlers.joint_cost import JointCostHandler
from kvatlas.scorers.latency.placements import TERMS
from support.candidates import endpoint
from support.joint import answer, model_of, options_of, pair_of, scheduler, send
from support.rating import decide

ZONE = LABELS[2]
COSTS = {"prefillTokensPerSecond": 1000.0, "overheadMs": 10.0, "decodeWeight": 1.0, "priceFactor": 0.0}
BUSY = (100, 0)
"""So many responses that every prompt is computed elsewhere."""


def one(name: str, role: str, zone: str = "a", in_flight: tuple[int, int] = (0, 0)) -> Candidate:
    return endpoint(name, in_flight=in_flight, labels={ROLE_LABEL: role, ZONE: zone})


def handler_of(made: Scheduler) -> JointCostHandler:
    assert isinstance(made.handler, JointCostHandler)
    return made.handler


def ms_of(made: Scheduler, fleet: list[Candidate], n_tokens: int, now: float = 1e6) -> dict[str, float]:
    """Return the terms of the best placement of a request that is not sent."""
    decision = decide(made, RequestView(model="m", now=now, n_tokens=n_tokens), fleet)
    return dict(options_of(decision)[0].terms_ms)


def test_prompt_is_ahead_where_it_is_computed_until_the_first_token() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 1e6, "latencyMs": 0.0})
    fleet = [one("d", "decode", in_flight=BUSY), one("p", "prefill")]
    first = send(made, fleet, n_tokens=1000)
    assert pair_of(first) == ("p", "d")
    booked = [one("d", "decode", in_flight=(101, 1000)), one("p", "prefill", in_flight=(1, 1000))]

    def ahead(now: float, of: list[Candidate]) -> tuple[float, float]:
        terms = ms_of(made, of, 100, now)
        return terms["queue"], terms["wait"] + terms["prefill"] + terms["queue"] + terms["overhead"]

    queue, ready = ahead(0.0, booked)
    assert queue == pytest.approx(1000 + 1000 * 500 / 35_000, abs=1)
    assert ahead(0.5, booked)[0] == pytest.approx(500, rel=0.05)
    answer(made, first, ms=1100.0)
    again = [one("d", "decode", in_flight=(101, 0)), one("p", "prefill")]
    queue_after, ready_after = ahead(1.1, again)
    assert queue_after == 0.0
    assert ready_after == pytest.approx(ready - queue, rel=0.01), "nothing of it is ahead on d"


def test_next_prompt_is_computed_since_the_one_before_was_and_not_since_its_first_token() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 2.097152, "latencyMs": 0.0})
    fleet = [one("d", "decode", in_flight=BUSY), one("p", "prefill")]
    first, second = (send(made, fleet, n_tokens=1000) for _ in range(2))
    made.answered(first, ttft_s=3.0)

    two = [one("d", "decode", in_flight=BUSY), one("p", "prefill", in_flight=(1, 1000))]
    queue = ms_of(made, two, 100, now=3.0)["queue"]

    # a second for the transfer, in which the next one was computed
    assert queue == pytest.approx(0.0, abs=50)
    assert made.ended(second, tpot_s=None) == ()


def test_transfers_of_a_prefill_server_wait_for_each_other() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 2.097152 / 3, "latencyMs": 0.0})
    fleet = [one("d", "decode", in_flight=BUSY), one("p", "prefill")]
    send(made, fleet, n_tokens=1000)

    terms = ms_of(made, fleet, 1000, now=0.0)

    # a token takes 1 ms to compute and 3 ms to transfer: the second prompt is computed while the first is transferred
    attention = 1000 * 500 / 35_000
    assert terms["transfer"] == pytest.approx(3000)
    assert terms["queue"] == pytest.approx(1000 + attention, abs=1)
    assert terms["wait"] == pytest.approx(2000 - attention - terms["overhead"], abs=1)


def terms_of(made: Scheduler, fleet: list[Candidate], n_tokens: int) -> dict[str, float]:
    return ms_of(made, fleet, n_tokens, now=0.0)


def test_transfers_to_a_decode_server_share_its_network() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 2.097152 / 3, "latencyMs": 0.0})
    d, e = (one(name, "decode", in_flight=BUSY) for name in "de")
    p, q = (one(name, "prefill") for name in "pq")
    send(made, [d, p], n_tokens=1000)

    shared, free = terms_of(made, [d, q], 1000), terms_of(made, [e, q], 1000)

    # both prompts are computed at the same time, and each token takes 3 ms to transfer
    assert shared["transfer"] == pytest.approx(3000)
    assert shared["queue"] == 0.0
    assert shared["wait"] == pytest.approx(3000, rel=0.02)
    assert free["wait"] == pytest.approx(0.0, abs=1)


def test_transfer_that_begins_before_those_of_other_prefill_servers_waits_for_none() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 2.097152 / 3, "latencyMs": 0.0})
    d, p, q = one("d", "decode", in_flight=BUSY), one("p", "prefill"), one("q", "prefill")
    send(made, [d, p], n_tokens=4000)

    assert terms_of(made, [d, q], 500)["wait"] == pytest.approx(0.0, abs=1)
    assert terms_of(made, [d, p], 500)["wait"] > 10_000, "the same server sends them one after the other"
    send(made, [d, q], n_tokens=500)
    assert terms_of(made, [d, q], 100)["wait"] == pytest.approx(1500 - 100, rel=0.1)


@pytest.mark.parametrize("is_refused", [True, False])
@pytest.mark.parametrize(
    ("kept_tokens", "others"), [(0, [("p", 1000), ("q", 1000), ("q", 10_000)]), (1000, [("p", 1000)])]
)
def test_transfer_of_a_request_that_ended_before_it_holds_up_no_other(
    kept_tokens: int, others: list[tuple[str, int]], *, is_refused: bool
) -> None:
    plain, mixed = (
        scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 2.097152 / 3, "latencyMs": 0.0})
        for _ in range(2)
    )
    d, p = one("d", "decode", in_flight=BUSY), one("p", "prefill")
    for made in (plain, mixed):
        answer(made, send(made, [d, p], n_tokens=100, now=-1000.0), ms=500.0)
        if kept_tokens:
            send(made, [d, p], n_tokens=kept_tokens)
    gone = send(mixed, [d, p], n_tokens=8000)
    assert pair_of(gone) == ("p", "d")
    assert terms_of(mixed, [d, p], 1000)["wait"] > 20_000
    assert mixed.ended(gone, tpot_s=None, is_refused=is_refused) == ()
    if is_refused:
        assert model_of(mixed).alone.work_tokens == pytest.approx(model_of(plain).alone.work_tokens)

    for name, n_tokens in others:
        fleet = [d, one(name, "prefill")]
        assert terms_of(mixed, fleet, n_tokens) == pytest.approx(terms_of(plain, fleet, n_tokens), abs=1)


def test_transfer_of_a_request_whose_response_the_gateway_hides_stays() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 2.097152 / 3, "latencyMs": 0.0})
    d, p = one("d", "decode", in_flight=BUSY), one("p", "prefill")
    assert made.ended(send(made, [d, p], n_tokens=8000), tpot_s=None) == ()

    assert terms_of(made, [d, p], 1000)["wait"] > 20_000


def test_nobody_waits_to_the_end_of_a_long_prompt_if_there_is_another_server() -> None:
    made = scheduler(**COSTS | {"priceFactor": 1.0, "decodeWeight": 0.0}, fit=False)
    fleet = [one("d", "decode"), one("e", "decode")]
    for number in range(1000):
        answer(made, send(made, fleet, n_tokens=500, now=float(number)), ms=510.0)

    def others(n_tokens: int, *servers: Candidate) -> float:
        return ms_of(made, list(servers), n_tokens, now=1000.0)["others"]

    # one request per second: a short prompt has the same price per request, wherever they go
    assert others(250, *fleet) == pytest.approx(others(250, fleet[0]) / 2, rel=0.01)
    # a long one delays everybody behind it for half of it in the mean, or with another server for one prompt there
    assert others(10_000, fleet[0]) > 10_000 * 5.0
    assert others(10_000, *fleet) < others(10_000, fleet[0]) / 2 / 5


def world(
    zones: dict[str, float], *, n: int = 400, prefill_ms: float = 1.0, transfer_ms: float = 0.3, **more: Any
) -> tuple[Scheduler, list[Candidate]]:
    """Return a scheduler that saw pairs whose times follow from a prompt token and a transferred token, by zone."""
    made, rng = scheduler(**COSTS, **more, transfer={"gigabitsPerSecond": 10.0}), random.Random(3)
    fleet = [one("d", "decode", in_flight=BUSY), *(one(f"p{zone}", "prefill", zone) for zone in zones)]
    for number in range(n):
        n_tokens = rng.randrange(200, 4000)
        some = [each for each in fleet if rng.random() < 0.7 or each.name == "d"]
        decision = send(made, some, n_tokens=n_tokens, now=100.0 * number)
        prefill, _ = pair_of(decision)
        if prefill is None:
            made.ended(decision, tpot_s=None)
            continue
        ms = 40.0 + n_tokens * (prefill_ms + transfer_ms * zones[prefill[1:]])
        answer(made, decision, ms=ms * rng.gauss(1.0, 0.05), tpot_ms=15.0)
    return made, fleet


@pytest.mark.parametrize("prefill_ms", [0.4, 2.0])
def test_times_of_pairs_are_learned(prefill_ms: float) -> None:
    made, fleet = world({"a": 1.0}, prefill_ms=prefill_ms)

    terms = ms_of(made, fleet, 2000)
    assert sum(terms[name] for name in TERMS[:7]) == pytest.approx(40 + 2000 * (prefill_ms + 0.3), rel=0.1)
    (report,) = handler_of(made).model.pairs.reports()
    assert report.is_fitted
    assert report.fit_error < 0.1 < report.prior_error


def test_zone_with_a_slow_link_is_found() -> None:
    made, fleet = world({"a": 1.0, "b": 6.0}, fit=True)

    near, far = (
        ms_of(made, [each for each in fleet if each.name in ("d", name)], 2000) for name in ("pa", "pb")
    )

    assert far["transfer"] - near["transfer"] == pytest.approx(2000 * 0.3 * 5, rel=0.35)
    assert pair_of(send(made, fleet, n_tokens=2000, now=1e6)) == ("pa", "d")
    links = {each.link: each for each in handler_of(made).model.pairs.links.reports()}
    assert links["b", "a"].tokens_per_second < links["a", "a"].tokens_per_second / 2


def test_server_that_computes_at_half_the_speed_is_found() -> None:
    made, rng = scheduler(**COSTS), random.Random(4)
    fleet = [one("d", "decode", in_flight=BUSY), one("slow", "prefill"), one("fast", "prefill")]
    for number in range(400):
        n_tokens = rng.randrange(200, 4000)
        some = [each for each in fleet if each.name == "d" or rng.random() < 0.6]
        decision = send(made, some, n_tokens=n_tokens, now=100.0 * number)
        prefill, _ = pair_of(decision)
        if prefill is None:
            made.ended(decision, tpot_s=None)
            continue
        factor = 2.0 if prefill == "slow" else 1.0
        answer(made, decision, ms=40.0 + n_tokens * factor * rng.gauss(1.0, 0.05))

    slow, fast = (ms_of(made, [fleet[0], each], 2000)["prefill"] for each in fleet[1:])
    assert slow / fast == pytest.approx(2.0, rel=0.25)


def test_pair_that_another_policy_chose_is_learned_from_too() -> None:
    other, made = scheduler(**COSTS), scheduler(**COSTS)
    fleet = [one("d", "decode", in_flight=BUSY), one("p", "prefill")]
    decision: Decision = send(other, fleet, n_tokens=500)

    assert made.picked(RequestView(model="m", now=0.0, n_tokens=500), decision) == ()
    answer(made, decision, ms=700.0, tpot_ms=20.0)

    assert handler_of(made).model.pairs.reports()[0].n_observations == 1
    answer(made, decision, ms=700.0, tpot_ms=20.0)  # not followed: it has ended
    assert handler_of(made).model.pairs.reports()[0].n_observations == pytest.approx(2, abs=0.01)


def test_refused_requests_raise_no_price_and_teach_no_mean() -> None:
    made = scheduler(**COSTS, fit=False)
    fleet = [one("d", "decode", in_flight=BUSY), one("p", "prefill")]
    answer(made, send(made, fleet, n_tokens=1000), ms=1100.0)
    model = handler_of(made).model
    rates = model.answered_per_ms.at(2.0), model.computed_per_ms.at(2.0)

    for _ in range(20):
        refused = send(made, fleet, n_tokens=900_000, now=1.0)
        assert made.ended(refused, tpot_s=None, is_refused=True) == ()

    assert (model.answered_per_ms.at(2.0), model.computed_per_ms.at(2.0)) == pytest.approx(rates)
    assert list(model.alone.means.shared.own("work", 2.0) or ())[2] == 1.0
    assert not len(model.alone.accounts)
