"""Filters: dropped endpoints, their reasons, and when all are kept."""

from __future__ import annotations

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.model import Candidate, Load, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.errors import ParametersError
from support.built import built
from support.candidates import TIERS, endpoint, held, load
from support.rating import judged

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
CONTEXT = BuildContext(tiers=TIERS)
Verdicts = list[str | None]


def verdicts_of(
    plugin_type: str, parameters: dict[str, object], *candidates: Candidate, chance: float = 0.5
) -> Verdicts:
    plugin = built(builtin_registry().filters, plugin_type, parameters, CONTEXT)
    return judged(plugin, REQUEST, candidates, rng=lambda: chance)


def expression(operator: str, *values: str) -> dict[str, object]:
    return {"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("parameters", "verdicts"),
    [
        pytest.param({}, [None, None, None], id="nothing_asked"),
        pytest.param(
            {"matchLabels": {"zone": "a"}},
            [None, "label zone is 'b', want 'a'", "label zone is None, want 'a'"],
            id="match_labels",
        ),
        pytest.param(expression("In", "a", "b"), [None, None, "label zone is None, want In a, b"], id="in"),
        pytest.param(expression("NotIn", "a"), ["label zone is 'a', want NotIn a", None, None], id="not_in"),
        pytest.param(expression("Exists"), [None, None, "label zone is None, want Exists"], id="exists"),
        pytest.param(
            expression("DoesNotExist"),
            ["label zone is 'a', want DoesNotExist", "label zone is 'b', want DoesNotExist", None],
            id="does_not_exist",
        ),
        pytest.param(
            {"matchLabels": {"zone": "a"}} | expression("NotIn", "a"),
            [
                "label zone is 'a', want NotIn a",
                "label zone is 'b', want 'a'",
                "label zone is None, want 'a'",
            ],
            id="all_must_hold",
        ),
    ],
)
def test_label_selector_keeps_endpoints_that_match(parameters: dict[str, object], verdicts: Verdicts) -> None:
    fleet = [endpoint("a", labels={"zone": "a"}), endpoint("b", labels={"zone": "b"}), endpoint("c")]

    assert verdicts_of("label-selector-filter", parameters, *fleet) == verdicts


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            expression("In"), "found 0 values for In of label 'zone', expected at least one", id="in"
        ),
        pytest.param(expression("Exists", "a"), "found 1 values for Exists", id="exists"),
        pytest.param(expression("Matches", "a"), "Invalid enum value 'Matches'", id="operator"),
    ],
)
def test_label_selector_rejects_contradictory_expressions(
    parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(ParametersError, match=message):
        verdicts_of("label-selector-filter", parameters)


@pytest.mark.parametrize(
    ("role", "kept"),
    [
        (None, True),
        ("decode", True),
        ("prefill-decode", True),
        ("both", True),
        ("encode-prefill-decode", True),
        ("prefill", False),
        ("encode", False),
        ("", False),
    ],
)
def test_decode_filter_keeps_endpoints_that_decode(role: str | None, *, kept: bool) -> None:
    labels = {} if role is None else {"llm-d.ai/role": role}

    (verdict,) = verdicts_of("decode-filter", {}, endpoint(labels=labels))

    assert verdict == (None if kept else f"label llm-d.ai/role is {role!r}, which does not decode")


@pytest.mark.parametrize(
    ("role", "prefills", "encodes"),
    [
        ("prefill", True, False),
        ("encode", False, True),
        ("encode-prefill", True, True),
        ("prefill-decode", True, False),
        ("both", True, False),
        ("encode-prefill-decode", True, True),
        ("decode", False, False),
        ("Prefill", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_roles_of_stages_before_decode_are_named(role: str | None, *, prefills: bool, encodes: bool) -> None:
    candidate = endpoint(labels={} if role is None else {"llm-d.ai/role": role})
    what = "without label llm-d.ai/role, so it" if role is None else f"label llm-d.ai/role is {role!r}, which"

    assert verdicts_of("prefill-filter", {}, candidate) == [None if prefills else f"{what} does not prefill"]
    assert verdicts_of("encode-filter", {}, candidate) == [None if encodes else f"{what} does not encode"]


@pytest.mark.parametrize(
    ("metric", "candidate", "verdict"),
    [
        pytest.param("active-requests", endpoint(in_flight=(5, 0)), None, id="at_the_limit"),
        pytest.param(
            "active-requests",
            endpoint(in_flight=(6, 0)),
            "active-requests is 6, at most 5 allowed",
            id="active_requests",
        ),
        pytest.param(
            "running-requests",
            endpoint(of=load(running=6)),
            "running-requests is 6, at most 5 allowed",
            id="running_requests",
        ),
        pytest.param(
            "waiting-queue",
            endpoint(of=load(waiting=9)),
            "waiting-queue is 9, at most 5 allowed",
            id="waiting_queue",
        ),
        pytest.param("kv-cache-utilization", endpoint(of=load(kv=0.9)), None, id="other_scale"),
        pytest.param("running-requests", endpoint(), None, id="unknown_running"),
        pytest.param("waiting-queue", endpoint(), None, id="unknown_queue"),
        pytest.param("kv-cache-utilization", endpoint(), None, id="unknown_utilization"),
    ],
)
def test_utilization_filter_drops_endpoints_known_to_be_above_a_limit(
    metric: str, candidate: Candidate, verdict: str | None
) -> None:
    parameters: dict[str, object] = {"conditions": [{"metric": metric, "maxValue": 5}]}

    assert verdicts_of("utilization-filter", parameters, candidate) == [verdict]


@pytest.mark.parametrize(
    ("fallback", "n_busy", "n_kept"),
    [
        pytest.param(False, 2, 0, id="none_left"),
        pytest.param(True, 2, 2, id="fallback_keeps_all"),
        pytest.param(True, 1, 1, id="fallback_not_needed"),
    ],
)
def test_utilization_filter_falls_back_only_when_it_would_drop_all(
    *, fallback: bool, n_busy: int, n_kept: int
) -> None:
    parameters: dict[str, object] = {
        "conditions": [{"metric": "kv-cache-utilization", "maxValue": 0.8}],
        "fallbackOnEmpty": fallback,
    }
    fleet = [endpoint(f"e{n}", of=load(kv=0.9 if n < n_busy else 0.1)) for n in range(2)]

    assert verdicts_of("utilization-filter", parameters, *fleet).count(None) == n_kept


SATURATED = [
    pytest.param({}, load(waiting=4, kv=0.79), None, id="below_both"),
    pytest.param({}, load(waiting=5), "5 requests wait, fewer than 5 allowed", id="queue"),
    pytest.param({}, load(kv=0.8), "0.8 of the KV cache is used, less than 0.8 allowed", id="cache"),
    pytest.param({"headroom": 0.5}, load(waiting=7), None, id="below_with_headroom"),
    pytest.param(
        {"headroom": 0.5, "queueDepthThreshold": 2},
        load(waiting=3),
        "3 requests wait, fewer than 3 allowed",
        id="headroom_used",
    ),
    pytest.param({}, None, "the load is unknown", id="unknown"),
]


@pytest.mark.parametrize(("parameters", "of", "verdict"), SATURATED)
def test_detector_drops_saturated_endpoints(
    parameters: dict[str, object], of: Load | None, verdict: str | None
) -> None:
    fleet = (endpoint("a", of=load()), endpoint("b", of=of))

    assert verdicts_of("utilization-detector", parameters, *fleet) == [None, verdict]


def test_detector_keeps_all_endpoints_when_all_are_saturated() -> None:
    fleet = [endpoint(f"e{n}", of=load(waiting=9)) for n in range(2)]

    assert verdicts_of("utilization-detector", {}, *fleet) == [None, None]


STICKY, OTHER = held(gpu=8, cpu=10), held(gpu=2, cpu=10)
NARROWED: Verdicts = [None, "holds 0.20 of the prompt, others 0.8 or more"]
ALL: Verdicts = [None, None]


@pytest.mark.parametrize(
    ("parameters", "sticky_tokens", "verdicts"),
    [
        pytest.param({}, 0, NARROWED, id="sticky_alone_is_kept"),
        pytest.param({}, 286_704, NARROWED, id="wait_at_the_limit"),
        pytest.param({}, 287_000, ALL, id="wait_above_the_limit"),
        pytest.param({"maxTTFTPenaltyMs": 0}, 10**9, NARROWED, id="always_stick"),
        pytest.param({"peakPrefillThroughput": 100}, 2_000, ALL, id="slower_prefill"),
        pytest.param({"affinityThreshold": 0.9}, 0, ALL, id="nobody_is_sticky"),
        pytest.param({"affinityThreshold": 0.1}, 10**9, ALL, id="everybody_is_sticky"),
        pytest.param({"affinityThreshold": 0}, 0, ALL, id="switched_off"),
        pytest.param({"explorationProbability": 0.6}, 0, ALL, id="explored"),
        pytest.param({"explorationProbability": 0.4}, 0, NARROWED, id="not_explored"),
        pytest.param({"tier": "cpu"}, 0, ALL, id="everybody_holds_it_in_cpu_memory"),
    ],
)
def test_affinity_filter_keeps_only_endpoints_that_hold_the_prompt(
    parameters: dict[str, object], sticky_tokens: int, verdicts: Verdicts
) -> None:
    fleet = [endpoint("a", prefix=STICKY, in_flight=(1, sticky_tokens)), endpoint("b", prefix=OTHER)]

    assert verdicts_of("prefix-cache-affinity-filter", parameters, *fleet) == verdicts


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(endpoint("a", prefix=STICKY, credit=0.5), id="half_trusted"),
        pytest.param(endpoint("a"), id="no_keys"),
        pytest.param(endpoint("a", prefix=held(n_blocks=0)), id="prompt_below_one_block"),
    ],
)
def test_affinity_filter_keeps_all_when_no_endpoint_is_sticky(candidate: Candidate) -> None:
    assert verdicts_of("prefix-cache-affinity-filter", {}, candidate, endpoint("b", prefix=OTHER)) == ALL


def test_affinity_filter_keeps_a_single_endpoint() -> None:
    assert verdicts_of("prefix-cache-affinity-filter", {}, endpoint("b", prefix=OTHER)) == [None]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"ttftSource": "latencyPredictor"}, "add a predicted-latency-producer", id="predictor"),
        pytest.param({"peakPrefillThroughput": 0}, "expected more than 0", id="no_throughput"),
        pytest.param({"tier": "ram"}, "expected a configured tier", id="tier"),
    ],
)
def test_affinity_filter_rejects_unsupported_parameters(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ParametersError, match=message):
        verdicts_of("prefix-cache-affinity-filter", parameters)
