"""The contract of filters, scorers and pickers, for any request, fleet and history."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.base import Filter, LearnsFromAnswers, LearnsFromPicks, Picker, Scorer
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.prefix_source import TierCredits
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.topology import Topology
from support.built import built
from support.candidates import REQUESTS, TIERS, fleets, no_chance
from support.rating import decide, judged, rated
from support.tables import key_table
from support.tree import ROOT

CONTEXT = BuildContext(
    tiers=TIERS,
    sources={"precise": TierCredits((1.0, 0.8))},
    own=None,
    predictor="predictor",
    topologies={"places": Topology(("zone", "zone", "zone", "zone"))},
)

PARAMETERS: dict[str, list[dict[str, object]]] = {
    "prefix-cache-scorer": [
        {},
        {"tier": "cpu"},
        {"prefixMatchInfoProducerName": "precise", "matchLengthWeight": 0.5, "matchLengthScaleTokens": 100},
    ],
    "active-request-scorer": [{}, {"idleThreshold": 5, "maxBusyScore": 0.5}],
    "session-affinity-scorer": [{}, {"strategy": "session_id"}],
    "session-affinity-filter": [{}, {"strategy": "session_id"}],
    "header-label-affinity-scorer": [{"headerName": "x-zone", "labelKey": "zone"}],
    "topology-affinity-scorer": [{}, {"topologyProducerName": "places"}],
    "topology-affinity-filter": [{}, {"topologyProducerName": "places", "minAffinity": "zone"}],
    "by-label": [{"label": "zone", "validValues": ["a"], "allowsNoLabel": True}],
    "endpoint-attribute-scorer": [
        {"attributeKey": "temp", "algorithm": {"type": "linear_lower_is_better"}},
        {
            "attributeKey": "temp",
            "algorithm": {
                "type": "linear_higher_is_better",
                "normalization": {"fixedRange": {"min": -5, "max": 50}},
            },
        },
    ],
    "endpoint-attribute-filter": [
        {
            "attribute": "temp",
            "onMissing": on_missing,
            "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 9}},
        }
        for on_missing in ("Pass", "Fail")
    ],
    "latency-cost-scorer": [{}, {"groupLabel": "zone", "scaleMs": 10}],
    "fleet-cost-scorer": [{}, {"groupLabel": "zone", "scaleMs": 10, "priceFactor": 3}],
    "utilization-filter": [
        {
            "conditions": [
                {"metric": "waiting-queue", "maxValue": 3},
                {"metric": "active-requests", "maxValue": 9},
            ]
        },
        {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 0.5}], "fallbackOnEmpty": True},
    ],
    "label-selector-filter": [
        {},
        {"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]},
    ],
    "context-length-aware": [{}, {"enableFiltering": True}],
    "prefix-cache-affinity-filter": [{}, {"affinityThreshold": 0.1, "maxTTFTPenaltyMs": 0}],
    "max-score-picker": [{}, {"maxNumOfEndpoints": 3}],
}
"""Sample parameters in addition to the defaults, or instead of them for plugins that require some."""

READ_WHAT_OTHERS_TELL = (
    "queue-scorer running-requests-size-scorer kv-cache-utilization-scorer load-aware-scorer prefix-cache-scorer"
    " precise-prefix-cache-scorer tiered-prefix-cache-scorer lora-affinity-scorer session-affinity-scorer"
    " header-label-affinity-scorer topology-affinity-scorer endpoint-attribute-scorer multicluster-queue-scorer"
    " multicluster-kv-cache-utilization-scorer"
).split()

"""Scorers that give 0 to an endpoint without any data; the others have data of their own."""


def samples(plugin_type: str) -> list[dict[str, object]]:
    return PARAMETERS.get(plugin_type, [{}])


SCORERS = [
    pytest.param(plugin_type, parameters, id=f"{plugin_type}-{number}")
    for plugin_type in builtin_registry().scorers
    for number, parameters in enumerate(samples(plugin_type))
]
TOLD_BY_OTHERS = [
    pytest.param(plugin_type, parameters, id=f"{plugin_type}-{number}")
    for plugin_type in READ_WHAT_OTHERS_TELL
    for number, parameters in enumerate(samples(plugin_type))
]
FILTERS = [
    pytest.param(plugin_type, parameters, id=f"{plugin_type}-{number}")
    for plugin_type in builtin_registry().filters
    for number, parameters in enumerate(samples(plugin_type))
]
PICKERS = [
    pytest.param(plugin_type, parameters, id=f"{plugin_type}-{number}")
    for plugin_type in builtin_registry().pickers
    for number, parameters in enumerate(samples(plugin_type))
]

HISTORIES = st.lists(st.tuples(REQUESTS, fleets(min_size=1), st.floats(0.001, 100)), max_size=3)


def new_scorer(plugin_type: str, parameters: dict[str, object], data: st.DataObject) -> Scorer:
    """Build a scorer; one that learns has processed routed and answered requests."""
    scorer = built(builtin_registry().scorers, plugin_type, parameters, CONTEXT)
    if not isinstance(scorer, LearnsFromPicks | LearnsFromAnswers):
        return scorer
    profile = Profile([("scorer", scorer, 1.0)], MaxScorePicker())
    for request, fleet, ttft_s in data.draw(HISTORIES):
        decision = decide(profile, request, fleet, rng=no_chance)
        faults = (
            *decision.faults,
            *profile.picked(request, decision),
            *profile.answered(decision, ttft_s=ttft_s),
        )
        assert faults == ()
    return scorer


@pytest.mark.parametrize(("plugin_type", "parameters"), SCORERS)
class TestScorerContract:
    @given(request=REQUESTS, fleet=fleets(), data=st.data())
    def test_one_finite_score_in_zero_to_one_for_each_candidate(
        self,
        plugin_type: str,
        parameters: dict[str, object],
        request: RequestView,
        fleet: list[Candidate],
        data: st.DataObject,
    ) -> None:
        scorer = new_scorer(plugin_type, parameters, data)

        ratings = rated(scorer, request, fleet)

        assert scorer.type == plugin_type
        assert len(ratings) == len(fleet)
        for rating in ratings:
            assert 0.0 <= rating.score <= 1.0
            assert rating.raw is None or math.isfinite(rating.raw)
            assert rating.age_s is None or rating.age_s >= 0.0

    @given(request=REQUESTS, fleet=fleets(), data=st.data())
    def test_permuting_candidates_permutes_ratings(
        self,
        plugin_type: str,
        parameters: dict[str, object],
        request: RequestView,
        fleet: list[Candidate],
        data: st.DataObject,
    ) -> None:
        scorer = new_scorer(plugin_type, parameters, data)
        order = data.draw(st.permutations(range(len(fleet))))

        ratings = rated(scorer, request, fleet)
        permuted = rated(scorer, request, [fleet[index] for index in order])

        assert list(permuted) == [ratings[index] for index in order]
        assert list(rated(scorer, request, tuple(fleet))) == list(ratings), "asking changes nothing"


@pytest.mark.parametrize(("plugin_type", "parameters"), TOLD_BY_OTHERS)
@given(request=REQUESTS, fleet=fleets())
def test_nothing_known_rates_zero_when_others_tell(
    plugin_type: str, parameters: dict[str, object], request: RequestView, fleet: list[Candidate]
) -> None:
    scorer = built(builtin_registry().scorers, plugin_type, parameters, CONTEXT)
    unseen = Candidate(name="unseen", address="10.0.1.0:8000")

    rating = rated(scorer, request, [*fleet, unseen])[-1]

    assert (rating.score, rating.age_s) == (0.0, None)


@pytest.mark.parametrize(("plugin_type", "parameters"), FILTERS)
class TestFilterContract:
    @given(request=REQUESTS, fleet=fleets(), chance=st.floats(0, 1, exclude_max=True))
    def test_one_verdict_for_each_candidate(
        self,
        plugin_type: str,
        parameters: dict[str, object],
        request: RequestView,
        fleet: list[Candidate],
        chance: float,
    ) -> None:
        plugin: Filter = built(builtin_registry().filters, plugin_type, parameters, CONTEXT)

        verdicts = judged(plugin, request, fleet, rng=lambda: chance)

        assert plugin.type == plugin_type
        assert len(verdicts) == len(fleet)
        assert all(verdict is None or verdict for verdict in verdicts)

    @given(request=REQUESTS, fleet=fleets(), chance=st.floats(0, 1, exclude_max=True), data=st.data())
    def test_permuting_candidates_permutes_verdicts(
        self,
        plugin_type: str,
        parameters: dict[str, object],
        request: RequestView,
        fleet: list[Candidate],
        chance: float,
        data: st.DataObject,
    ) -> None:
        plugin = built(builtin_registry().filters, plugin_type, parameters, CONTEXT)
        order = data.draw(st.permutations(range(len(fleet))))

        verdicts = judged(plugin, request, fleet, rng=lambda: chance)
        permuted = judged(plugin, request, [fleet[index] for index in order], rng=lambda: chance)

        assert list(permuted) == [verdicts[index] for index in order]


@pytest.mark.parametrize(("plugin_type", "parameters"), PICKERS)
class TestPickerContract:
    @given(totals=st.lists(st.floats(0, 100), min_size=1, max_size=12), seed=st.integers(0, 2**32))
    def test_picks_are_distinct_endpoints_and_as_many_as_asked(
        self, plugin_type: str, parameters: dict[str, int], totals: list[float], seed: int
    ) -> None:
        picker: Picker = built(builtin_registry().pickers, plugin_type, parameters, CONTEXT)

        picked, _ = picker.pick(np.array(totals), rng=random.Random(seed).random)

        assert picker.type == plugin_type
        assert len(set(picked)) == len(picked) == min(parameters.get("maxNumOfEndpoints", 1), len(totals))
        assert set(picked) <= set(range(len(totals)))

    @given(totals=st.lists(st.floats(0, 100), min_size=1, max_size=12), seed=st.integers(0, 2**32))
    def test_equal_chance_gives_equal_picks(
        self, plugin_type: str, parameters: dict[str, object], totals: list[float], seed: int
    ) -> None:
        picker = built(builtin_registry().pickers, plugin_type, parameters, CONTEXT)

        assert picker.pick(np.array(totals), rng=random.Random(seed).random) == picker.pick(
            np.array(totals), rng=random.Random(seed).random
        )


PAGES = Path(ROOT, "docs", "scorers")
HEADINGS = ["Formula", "Ties", "Inputs", "Parameters", "Example"]
TYPES = sorted({plugin_type for kind in builtin_registry().kinds for plugin_type in kind})


def test_every_plugin_has_a_page_and_every_page_a_plugin() -> None:
    assert sorted(page.stem for page in PAGES.glob("*.md") if page.name != "README.md") == TYPES


@pytest.mark.parametrize("plugin_type", TYPES)
def test_page_has_the_headings_and_a_row_for_every_parameter(plugin_type: str) -> None:
    page = (PAGES / f"{plugin_type}.md").read_text()

    assert page.startswith(f"# {plugin_type}\n")
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == HEADINGS
    section = page.partition("## Parameters\n")[2].partition("\n## ")[0]
    for kind in builtin_registry().kinds:
        if (blueprint := kind.get(plugin_type)) is not None:
            table = key_table(blueprint.params) if blueprint.params.__struct_fields__ else "None."
            assert table in section, f"the parameters of {plugin_type} must read:\n{table}"
