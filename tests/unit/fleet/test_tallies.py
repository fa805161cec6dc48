"""Tallies compared with the counters and histograms of `prometheus_client`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from kvatlas.fleet.tallies import Tally, Times

BOUNDS_S = (0.001, 0.25, 1.0, 10.0)


def shown(registry: CollectorRegistry) -> list[str]:
    """Return the text of `/metrics` without creation times."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", 'b"\\', "c\nd"]), st.integers(0, 10**6)), max_size=20))
def test_labelled_tally_is_shown_as_a_counter(additions: list[tuple[str, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = Tally("things", "Things seen.", "kind", registry=ours)
    counter = Counter("kvatlas_things", "Things seen.", ["kind"], registry=theirs)
    for kind, n in additions:
        tally.add(kind, n)
        counter.labels(kind).inc(n)

    assert shown(ours) == shown(theirs)


@pytest.mark.parametrize("additions", [pytest.param([], id="none"), pytest.param([1, 41], id="some")])
def test_tally_without_label_is_shown_as_a_counter(additions: list[int]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = Tally("things", "Things seen.", registry=ours)
    counter = Counter("kvatlas_things", "Things seen.", registry=theirs)
    for n in additions:
        tally.add(n=n)
        counter.inc(n)

    assert shown(ours) == shown(theirs)


def test_series_ends_when_its_label_is_forgotten() -> None:
    registry = CollectorRegistry()
    tally = Tally("things", "Things seen.", "kind", registry=registry)
    tally.add("a")
    tally.add("b")
    tally.forget("a")
    tally.forget("never seen")

    assert registry.get_sample_value("kvatlas_things_total", {"kind": "a"}) is None
    assert registry.get_sample_value("kvatlas_things_total", {"kind": "b"}) == 1


@given(st.lists(st.sampled_from([0.0, 0.0005, 0.001, 0.2, 0.25, 0.5, 1.0, 7.5, 10.0, 11.0]), max_size=20))
def test_times_are_shown_as_a_histogram(seconds: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    times = Times("wait_seconds", "Time waited.", BOUNDS_S, registry=ours)
    histogram = Histogram("kvatlas_wait_seconds", "Time waited.", buckets=BOUNDS_S, registry=theirs)
    for each in seconds:
        times.observe(each)
        histogram.observe(each)

    assert shown(ours) == shown(theirs)


def test_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    Tally("things", "Things seen.", registry=registry)
    Times("wait_seconds", "Time waited.", BOUNDS_S, registry=registry)

    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Counter("kvatlas_things", "Others.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Histogram("kvatlas_wait_seconds", "Others.", registry=registry)
