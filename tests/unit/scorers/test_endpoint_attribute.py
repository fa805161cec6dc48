"""`endpoint-attribute-scorer` and `-filter`: formulas, unknown values, contradictory parameters."""

from __future__ import annotations

import msgspec
import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.endpoint_attribute import EndpointAttributeScorerParams
from kvatlas.scorers.errors import ParametersError
from support.built import built
from support.candidates import endpoint, no_chance
from support.rating import judged, rated

VIEW = RequestView(model="m", now=0.0)
LOWER, HIGHER = "linear_lower_is_better", "linear_higher_is_better"


def fleet(*values: float | None) -> list[Candidate]:
    return [
        endpoint(f"e{number}", attributes={} if value is None else {"temp": value})
        for number, value in enumerate(values)
    ]


def scorer_parameters(algorithm: str, **normalization: object) -> dict[str, object]:
    return {"attributeKey": "temp", "algorithm": {"type": algorithm, "normalization": normalization}}


@pytest.mark.parametrize(
    ("parameters", "values", "scores"),
    [
        pytest.param(scorer_parameters(LOWER), (30, 50, 70), [1.0, 0.5, 0.0], id="lower"),
        pytest.param(scorer_parameters(HIGHER, adaptiveRange={}), (30, 50, 70), [0.0, 0.5, 1.0], id="higher"),
        pytest.param(scorer_parameters(LOWER), (-3, 1, None), [1.0, 0.0, 0.0], id="negative"),
        pytest.param(scorer_parameters(LOWER), (None, 50, 70), [0.0, 1.0, 0.0], id="unknown"),
        pytest.param(scorer_parameters(HIGHER), (None, 50, 70), [0.0, 0.0, 1.0], id="higher_unknown"),
        pytest.param(scorer_parameters(LOWER), (50, 50, None), [1.0, 1.0, 0.0], id="equal"),
        pytest.param(scorer_parameters(LOWER), (None, None), [0.0, 0.0], id="all_unknown"),
        pytest.param(
            scorer_parameters(LOWER, fixedRange={"min": 40, "max": 60}),
            (30, 50, 70, None),
            [1.0, 0.5, 0.0, 0.0],
            id="fixed",
        ),
        pytest.param(
            scorer_parameters(HIGHER, fixedRange={"min": 0, "max": 100}),
            (30, 170, -1, None),
            [0.3, 1.0, 0.0, 0.0],
            id="fixed_higher",
        ),
    ],
)
def test_values_are_scored_linearly(
    parameters: dict[str, object], values: tuple[float | None, ...], scores: list[float]
) -> None:
    ratings = rated(
        built(builtin_registry().scorers, "endpoint-attribute-scorer", parameters), VIEW, fleet(*values)
    )

    assert [each.score for each in ratings] == pytest.approx(scores)
    assert [each.raw for each in ratings] == list(values)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            scorer_parameters(LOWER, fixedRange={"min": 1, "max": 1}), "expected min below max", id="range"
        ),
        pytest.param(
            scorer_parameters(LOWER, fixedRange={"min": 0, "max": 1}, adaptiveRange={}),
            "found fixedRange and adaptiveRange, expected one",
            id="two_ranges",
        ),
        pytest.param(
            scorer_parameters(LOWER) | {"attributeKey": "temp/dcgm"},
            "found 'temp/dcgm', expected 'temp' here and 'dcgm' as producer",
            id="attribute_and_producer",
        ),
        pytest.param({"attributeKey": "temp"}, "missing required field `algorithm`", id="no_algorithm"),
    ],
)
def test_contradictory_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ParametersError, match=message):
        built(builtin_registry().scorers, "endpoint-attribute-scorer", parameters)


def test_attributes_without_series_are_remarked_on() -> None:
    params = msgspec.convert(scorer_parameters(LOWER), EndpointAttributeScorerParams)

    assert list(params.remarks(BuildContext(attributes=("power", "temp")))) == []
    assert list(params.remarks(BuildContext(attributes=("power",)))) == [
        "no series is configured for the attribute 'temp', so that it is unknown; configured: power"
    ]


def filter_parameters(operator: str, value: float, **more: object) -> dict[str, object]:
    threshold = {"operator": operator, "value": value}
    return {"attribute": "temp", "algorithm": {"type": "threshold", "threshold": threshold}} | more


@pytest.mark.parametrize(
    ("operator", "kept"),
    [
        ("LessThan", "0"),
        ("LessThanOrEqual", "01"),
        ("GreaterThan", "2"),
        ("GreaterThanOrEqual", "12"),
        ("Equal", "1"),
        ("NotEqual", "02"),
    ],
)
@pytest.mark.parametrize("on_missing", ["Pass", "Fail", ""])
def test_endpoints_that_fail_the_comparison_are_dropped(operator: str, kept: str, on_missing: str) -> None:
    plugin = built(
        builtin_registry().filters,
        "endpoint-attribute-filter",
        filter_parameters(operator, 50, onMissing=on_missing),
    )

    verdicts = judged(plugin, VIEW, fleet(30, 50, 70, None))

    assert "".join(str(n) for n in range(3) if verdicts[n] is None) == kept
    assert verdicts[3] == (f"temp is unknown, want {operator} 50" if on_missing == "Fail" else None)
    dropped = [f"temp is {value}, want {operator} 50" for value in (30, 50, 70)]
    assert {each for each in verdicts[:3] if each is not None} <= set(dropped)


def test_nobody_or_all_are_kept_if_no_value_passes() -> None:
    registry, hot = builtin_registry(), fleet(30, 50)

    def kept(*, fallback: bool) -> int:
        parameters = filter_parameters("LessThan", 10, fallbackOnEmpty=fallback)
        return judged(built(registry.filters, "endpoint-attribute-filter", parameters), VIEW, hot).count(None)

    assert (kept(fallback=False), kept(fallback=True)) == (0, 2)


def test_kept_decision_shows_why_an_endpoint_was_dropped() -> None:
    plugin = built(builtin_registry().filters, "endpoint-attribute-filter", filter_parameters("LessThan", 40))
    profile = Profile([], MaxScorePicker(), [("cool", plugin)])

    decision = profile.decide(VIEW, Candidates.of(fleet(30, 50)), rng=no_chance).lasting()

    assert {name: each.reason for name, each in decision.dropped.items()} == {
        "e1": "temp is 50, want LessThan 40"
    }
