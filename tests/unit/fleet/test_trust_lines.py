"""Log lines of changes of trust in the events of a rank, and of its resets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.events.line_limit import LINE_S, MAX_LINES, LineLimit
from kvatlas.events.stream import Trust
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.predictions import Predictions
from kvatlas.fleet.rank import Rank
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable


def make_rank(registry: CollectorRegistry, on_trust: Callable[[str, int, Trust], None]) -> Rank:
    """Return rank 0 of the endpoint `e`."""
    atlas = Atlas(tiers=TierTable([TierSpec("gpu", ("GPU",))]), seed=7, core=index_core())
    atlas.add("e")
    predictions = Predictions(atlas, ttl_s=None)
    return Rank("e", 0, atlas, atlas.ledger("e", 0), predictions, FleetMetrics(registry), on_trust)


def test_trust_that_changes_often_is_counted_and_logged_a_few_times(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.fleet.rank.time", SimpleNamespace(monotonic=lambda: 100.0))
    caplog.set_level("INFO")
    registry, seen = CollectorRegistry(), list[Trust]()
    rank = make_rank(registry, lambda _endpoint, _rank, trust: seen.append(trust))

    for _ in range(100):
        rank.trust_changed(Trust.LIVE, Trust.REPLAYING)
        rank.trust_changed(Trust.REPLAYING, Trust.LIVE)
    rank.trust_changed(Trust.LIVE, Trust.STALE)

    assert sum("events live -> replaying" in line for line in caplog.messages) == MAX_LINES
    assert caplog.messages[-1] == "e rank 0: events live -> stale"  # another change has lines of its own
    assert len(seen) == 201
    assert registry.get_sample_value("kvatlas_trust_transitions_total", {"state": "live"}) == 100


def test_engine_that_restarts_again_and_again_is_logged_again_and_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("kvatlas.fleet.rank.time", SimpleNamespace(monotonic=lambda: now))
    rank = make_rank(CollectorRegistry(), lambda _endpoint, _rank, _trust: None)

    for _ in range(100):  # it fails 40 s after each start
        rank.reset("its process start time changed")
        now += 40.0

    lines = [line for line in caplog.messages if line.startswith("e rank 0: starting over, its process")]
    assert len(lines) > 60
    assert any("such lines since the last one were not logged" in line for line in lines)


def test_line_after_those_that_were_left_out_has_their_number() -> None:
    limit = LineLimit()
    lines = [limit.line(1000.0) for _ in range(MAX_LINES + 7)]
    assert lines[: MAX_LINES - 1] == [""] * (MAX_LINES - 1)
    assert "once a minute from now on" in str(lines[MAX_LINES - 1])
    assert lines[MAX_LINES:] == [None] * 7
    assert limit.line(1000.0 + LINE_S) == " (7 such lines since the last one were not logged)"
    assert limit.line(1000.0 + LINE_S) is None
    assert [limit.line(1e6) for _ in range(MAX_LINES + 1)][-2:] != [None, None]
