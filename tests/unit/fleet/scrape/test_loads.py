"""Loads by endpoint, valid for a limited time."""

from __future__ import annotations

import pytest

from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.scorers.core.model import Load

LOAD = Load(waiting=1, running=2, kv_utilization=0.5, updated_at=10.0)


@pytest.fixture
def loads() -> LoadTable:
    table = LoadTable(stale_after_s=2.0)
    table.put("a", LOAD)
    return table


@pytest.mark.parametrize(
    ("now", "known"),
    [
        pytest.param(9.0, True, id="newer_than_now"),
        pytest.param(10.0, True, id="fresh"),
        pytest.param(12.0, True, id="at_the_limit"),
        pytest.param(12.001, False, id="past_the_limit"),
    ],
)
def test_load_is_believed_until_it_is_stale(loads: LoadTable, now: float, *, known: bool) -> None:
    assert loads.get("a", now) == (LOAD if known else None)
    assert loads.last("a") == LOAD


def test_unknown_endpoint_has_no_load(loads: LoadTable) -> None:
    assert loads.get("b", 10.0) is None


def test_newest_load_replaces_the_one_before(loads: LoadTable) -> None:
    newer = Load(waiting=0, running=0, kv_utilization=0.0, updated_at=11.0)
    loads.put("a", newer)

    assert loads.get("a", 11.0) == newer


def test_listeners_get_every_new_load(loads: LoadTable) -> None:
    heard: list[tuple[str, Load]] = []
    loads.listen(lambda name, load: heard.append((name, load)))

    loads.put("a", LOAD)
    loads.put("b", LOAD)

    assert heard == [("a", LOAD), ("b", LOAD)]


def test_removed_endpoint_has_no_load(loads: LoadTable) -> None:
    loads.remove("a")
    loads.remove("never added")

    assert loads.get("a", 10.0) is None
