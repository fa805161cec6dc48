"""Speeds of links: learned from times of which the transfer is a part, bounded, and as sure as the times allow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvatlas.scorers.core.candidates import Directory
from kvatlas.scorers.latency.links import MAX_LINKS, SPREAD, Link, Links

PRIOR_MS = 0.02
NEAR: Link = ("a", "a")
FAR: Link = ("a", "b")


def directory(*zones: str | None) -> Directory:
    names = [f"e{number}" for number in range(len(zones))]
    return Directory(names, names, [{} if zone is None else {"zone": zone} for zone in zones])


def learn(links: Links, factors: dict[Link, float], *, n: int, rest_ms: float = 500.0) -> None:
    """Have each link transfer prompts of some thousand tokens, beside which a time has a noisy rest."""
    rng = random.Random(1)
    for _ in range(n):
        for link, factor in factors.items():
            tokens = rng.randrange(2_000, 30_000)
            expected = rest_ms + tokens * links.ms_per_token(link)
            observed = rest_ms * rng.gauss(1.0, 0.1) + tokens * PRIOR_MS * factor
            links.learn(
                link,
                transfer_ms=tokens * links.ms_per_token(link),
                observed_ms=observed,
                expected_ms=expected,
            )


def test_each_link_finds_its_speed() -> None:
    links = Links(PRIOR_MS)

    learn(links, {NEAR: 1.0, FAR: 4.0}, n=200)

    assert links.ms_per_token(NEAR) == pytest.approx(PRIOR_MS, rel=0.15)
    assert links.ms_per_token(FAR) == pytest.approx(4 * PRIOR_MS, rel=0.15)
    near, far = links.reports()
    assert near.tokens_per_second == pytest.approx(1000 / links.ms_per_token(NEAR))
    assert (near.link, near.n_observations) == (NEAR, 200)
    assert far.error < near.error < 0.2


def test_only_link_is_found_slow_if_all_prompts_are_as_long() -> None:
    links, rest_ms, tokens = Links(PRIOR_MS), 2000.0, 25_000
    for _ in range(20):
        transfer_ms = tokens * links.ms_per_token(NEAR)
        links.learn(
            NEAR,
            transfer_ms=transfer_ms,
            observed_ms=rest_ms + 4 * tokens * PRIOR_MS,
            expected_ms=rest_ms + transfer_ms,
        )

    assert links.ms_per_token(NEAR) > 3 * PRIOR_MS


def test_short_transfers_say_little() -> None:
    links = Links(PRIOR_MS)
    for _ in range(100):
        links.learn(NEAR, transfer_ms=1.0, observed_ms=700.0, expected_ms=500.0)

    (report,) = links.reports()
    assert report.error > 0.95 * SPREAD
    assert links.ms_per_token(NEAR) == pytest.approx(PRIOR_MS, rel=0.5)


def test_link_that_changes_is_followed() -> None:
    links = Links(PRIOR_MS)
    learn(links, {NEAR: 1.0, FAR: 1.0}, n=500)
    learn(links, {NEAR: 1.0, FAR: 6.0}, n=200)

    assert links.ms_per_token(FAR) == pytest.approx(6 * PRIOR_MS, rel=0.3)


@pytest.mark.parametrize("wait_ms", [2_000.0, 5_000.0, 60_000.0])
def test_first_transfer_that_waits_for_a_connection_says_little(wait_ms: float) -> None:
    links = Links(PRIOR_MS)

    links.learn(NEAR, transfer_ms=100.0, observed_ms=500.0 + wait_ms, expected_ms=500.0)

    assert links.ms_per_token(NEAR) < 1.6 * PRIOR_MS
    assert links.reports()[0].error > 0.9 * SPREAD  # the next ones say as much as if they were the first


@pytest.mark.parametrize("factor", [5.0, 10.0, 15.0])
def test_link_that_is_far_slower_than_configured_is_found_in_a_few_transfers(factor: float) -> None:
    links = Links(PRIOR_MS)
    for _ in range(5):
        transfer_ms = 5_000 * links.ms_per_token(NEAR)
        links.learn(
            NEAR,
            transfer_ms=transfer_ms,
            observed_ms=400.0 + 5_000 * PRIOR_MS * factor,
            expected_ms=400.0 + transfer_ms,
        )

    assert links.ms_per_token(NEAR) == pytest.approx(factor * PRIOR_MS, rel=0.3)


@pytest.mark.parametrize("observed_ms", [1e-3, 1e9])
def test_speeds_are_bounded(observed_ms: float) -> None:
    links = Links(PRIOR_MS, most=5.0)
    for _ in range(1000):
        links.learn(NEAR, transfer_ms=400.0, observed_ms=observed_ms, expected_ms=500.0)

    assert PRIOR_MS / 5.001 < links.ms_per_token(NEAR) < PRIOR_MS * 5.001


def test_further_links_keep_the_configured_speed() -> None:
    links = Links(PRIOR_MS)
    for number in range(MAX_LINKS + 10):
        links.learn((f"{number}", "x"), transfer_ms=400.0, observed_ms=900.0, expected_ms=500.0)

    assert len(links.reports()) == MAX_LINKS
    assert links.ms_per_token((f"{MAX_LINKS + 1}", "x")) == PRIOR_MS


def test_links_without_endpoints_give_way_to_others() -> None:
    links = Links(PRIOR_MS)
    for number in range(MAX_LINKS):
        links.learn((f"{number}", "x"), transfer_ms=400.0, observed_ms=900.0, expected_ms=500.0)
    links.follow(("0", "2", "x", "y"))
    links.shared.on_change = lambda: None

    for link in (("2", "y"), ("y", "x"), ("gone", "x")):
        links.learn(link, transfer_ms=400.0, observed_ms=900.0, expected_ms=500.0)

    found = [report.link for report in links.reports()]
    assert len(found) == MAX_LINKS
    assert [*found[:3], *found[-2:]] == [("0", "x"), ("2", "x"), ("4", "x"), ("2", "y"), ("y", "x")]
    assert links.shared.changed.keys() >= {'["1","x"]', '["3","x"]'}
    assert links.shared.own('["1","x"]', 0.0) is None


def test_links_with_endpoints_keep_their_place() -> None:
    links = Links(PRIOR_MS)
    labels = tuple(f"{number}" for number in range(33))
    links.follow(labels)
    for sender in labels:
        for receiver in labels:
            links.learn((sender, receiver), transfer_ms=400.0, observed_ms=900.0, expected_ms=500.0)

    assert len(links.reports()) == MAX_LINKS
    assert links.reports()[0].link == ("0", "0")


def test_table_is_that_of_the_pairs_of_labels() -> None:
    links = Links(PRIOR_MS)
    column = directory("a", "b", None, "a").labelled("zone")
    before = links.between(column, column)
    learn(links, {FAR: 4.0, NEAR: 0.5}, n=100)

    after = links.between(column, column)

    assert (before == PRIOR_MS).all()
    near, far = links.ms_per_token(NEAR), links.ms_per_token(FAR)
    assert after.tolist() == [
        [near, far, PRIOR_MS, near],
        [PRIOR_MS] * 4,
        [PRIOR_MS] * 4,
        [near, far, PRIOR_MS, near],
    ]
    other = directory("b", "a").labelled("zone")
    assert links.between(other, other).tolist() == [[PRIOR_MS, PRIOR_MS], [far, near]]


def test_fleet_without_labels_has_one_speed() -> None:
    links = Links(PRIOR_MS)
    column = directory(None, None).labelled("zone")
    links.between(column, column)
    learn(links, {(None, None): 3.0}, n=100)

    assert links.between(column, column) == np.array([[links.ms_per_token((None, None))]])


def share(source: Links, owner: str, *targets: Links) -> None:
    for key in source.shared.known():
        for target in targets:
            target.shared.take(owner, key, source.shared.own(key, 0.0), now=0.0)


def test_speeds_of_siblings_count_by_how_sure_they_are() -> None:
    sure, unsure = Links(PRIOR_MS), Links(PRIOR_MS)
    learn(sure, {FAR: 4.0}, n=200)
    learn(unsure, {FAR: 2.0}, n=1)
    alone, error = sure.ms_per_token(FAR), sure.reports()[0].error
    share(sure, "sure", unsure)
    share(unsure, "unsure", sure)
    assert sure.ms_per_token(FAR) == pytest.approx(unsure.ms_per_token(FAR))
    assert sure.ms_per_token(FAR) == pytest.approx(alone, rel=0.1)
    assert sure.reports()[0].error < error
    assert unsure.reports()[0].n_observations == 201
    for links in (sure, unsure):
        for owner in ("sure", "unsure"):
            links.shared.take(owner, '["a","b"]', None, now=0.0)
    assert sure.ms_per_token(FAR) == alone


def test_replica_without_transfers_has_the_speeds_of_its_siblings_in_its_table() -> None:
    sure, new = Links(PRIOR_MS), Links(PRIOR_MS)
    learn(sure, {FAR: 4.0}, n=50)
    column = directory("a", "b").labelled("zone")
    new.between(column, column)
    share(sure, "sure", new)
    assert new.between(column, column)[0, 1] == pytest.approx(sure.ms_per_token(FAR))


def test_two_processes_that_share_find_the_speed_together_and_each_keeps_to_its_own() -> None:
    one, other = Links(PRIOR_MS), Links(PRIOR_MS)
    for _ in range(5):
        learn(one, {FAR: 4.0}, n=40)
        learn(other, {FAR: 4.0}, n=40)
        share(one, "one", other)
        share(other, "other", one)
    assert one.ms_per_token(FAR) == pytest.approx(4 * PRIOR_MS, rel=0.15)
    one.shared.take("other", '["a","b"]', None, now=0.0)
    assert one.ms_per_token(FAR) == pytest.approx(4 * PRIOR_MS, rel=0.3)


@pytest.mark.parametrize("key", ["", "x", "[1,2]", '["a"]', '["a","b"]'])
@pytest.mark.parametrize("numbers", [[], [1.0, -1.0, 1.0], [1e300, 1e300, 1.0], [0.0, 0.0, -1.0]])
def test_impossible_numbers_of_siblings_change_no_speed(key: str, numbers: list[float]) -> None:
    links = Links(PRIOR_MS)
    links.shared.take("other", key, numbers, now=0.0)
    assert links.ms_per_token(FAR) == PRIOR_MS
    assert links.reports() == []


def test_links_of_siblings_stay_bounded() -> None:
    links = Links(PRIOR_MS)
    for number in range(2 * MAX_LINKS):
        links.shared.take("other", f'["a","{number}"]', [1.0, 1.0, 1.0], now=0.0)
    assert len(links.reports()) == MAX_LINKS
