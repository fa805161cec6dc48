"""`latency-scorer`: as the reference with predictions, the sum without them, and what is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.prefix_source import OneTier
from kvatlas.scorers.latency.headroom import LatencyParams, LatencyScorer
from support.candidates import endpoint, held, load
from support.predicted import predicted
from support.tree import ROOT

REQUEST = RequestView(model="m", now=0.0)
RECORDED = [
    json.loads(line)
    for line in Path(ROOT, "tests/golden/latency-scorer/predicted.jsonl").read_text().splitlines()
]


def scorer(**params: Any) -> LatencyScorer:
    return LatencyScorer(LatencyParams(**params), OneTier("gpu"))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: json.dumps(list(case.values())[:-1]))
def test_scores_are_those_of_the_reference(case: dict[str, Any]) -> None:
    ttft_ms, tpot_ms = (each or 0.0 for each in case["slo"])
    fleet = [endpoint(name, in_flight=(case["in_flight"], 0)) for name in "abc"]
    table = predicted(fleet, case["predicted"], ttft_ms=ttft_ms, tpot_ms=tpot_ms)

    ratings = scorer(headroom_selection_strategy=case["strategy"]).rate(REQUEST, table)

    assert ratings.scores.tolist() == case["scores"]


def test_endpoint_without_a_prediction_counts_as_one_with_no_headroom() -> None:
    table = predicted([endpoint("a"), endpoint("b"), endpoint("c")], [(100, 1), None, (900, 1)], ttft_ms=500)

    scores = scorer().rate(REQUEST, table).scores

    assert scores.tolist() == [0.0, 0.51, 0.0], "the others miss an objective, that of 0 for an output token"


@pytest.mark.parametrize(
    "key",
    ["ttftWeight", "tpotWeight", "compositeKVWeight", "compositeQueueWeight", "compositePrefixWeight"],
)
def test_weight_whose_sums_would_overflow_is_refused(key: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=rf"`float` <= 1000000000.0 - at `\$.{key}`"):
        msgspec.convert({key: 1.7e308}, LatencyParams)


LOADED = [
    endpoint("a", of=load(waiting=0, kv=0.5)),
    endpoint("b", of=load(waiting=2, kv=0.2)),
    endpoint("c", of=load(waiting=8, kv=0.9)),
]


@pytest.mark.parametrize(
    ("params", "fleet", "scores"),
    [
        pytest.param({}, LOADED, [0.5, 0.52, 0.03], id="recorded"),
        pytest.param(
            {"composite_kv_weight": 0.0, "composite_queue_weight": 3.0},
            LOADED,
            [0.75, 0.56, 0.0],
            id="weights",
        ),
        pytest.param(
            {"composite_kv_weight": 0.0, "composite_queue_weight": 3.0},
            [endpoint("a", of=load(), prefix=held(gpu=10)), endpoint("b", of=load(), prefix=held(cpu=10))],
            [1.0, 0.75],
            id="cached_prefix",
        ),
        pytest.param(
            {"composite_kv_weight": 0.0, "composite_queue_weight": 0.0, "composite_prefix_weight": 0.0},
            LOADED,
            [0.5, 0.8, 0.1],
            id="no_weights_at_all",
        ),
        pytest.param({}, [endpoint("a"), LOADED[0]], [0.0, 0.5], id="unknown_load_is_the_worst"),
    ],
)
def test_without_predictions_the_score_is_a_sum(
    params: dict[str, float], fleet: list[Candidate], scores: list[float]
) -> None:
    assert scorer(**params).rate(REQUEST, Candidates.of(fleet)).scores.tolist() == pytest.approx(scores)
