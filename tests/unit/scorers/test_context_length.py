"""`context-length-aware`: fit of ranges as scorer, exclusion as filter, unreadable labels."""

from __future__ import annotations

import pytest

from kvatlas.scorers.context_length import ContextLengthFilter, ContextLengthScorer, parse_range
from kvatlas.scorers.core.model import Candidate, RequestView
from support.candidates import endpoint, no_chance
from support.rating import judged, rated

LABEL = "llm-d.ai/context-length-range"


def labelled(value: str | None) -> Candidate:
    return endpoint(labels={} if value is None else {LABEL: value})


@pytest.mark.parametrize(
    ("n_tokens", "label", "score"),
    [
        pytest.param(1000, "0-2000", 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 0.5), id="in_range"),
        pytest.param(0, "0-2000", 0.3 + 0.7 * (0.7 / 1.2 + 0.3), id="lower_end"),
        pytest.param(2000, "0-2000", 0.3 + 0.7 * (0.7 / 1.2), id="upper_end"),
        pytest.param(500, "500-500", 1.0, id="no_width"),
        pytest.param(3000, "0-2000", 0.3 / 2, id="above"),
        pytest.param(500, "1500-3000", 0.3 / 2, id="below"),
        pytest.param(500, None, 0.5, id="no_label"),
        pytest.param(500, "long", 0.0, id="unreadable"),
    ],
)
def test_scorer_rates_how_well_the_range_fits(n_tokens: int, label: str | None, score: float) -> None:
    (rating,) = rated(
        ContextLengthScorer(LABEL), RequestView(model="m", now=0.0, n_tokens=n_tokens), [labelled(label)]
    )

    assert rating.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("label", "enabled", "verdict"),
    [
        pytest.param("0-2000", True, None, id="in_range"),
        pytest.param(None, True, None, id="no_label"),
        pytest.param("0-99", True, f"the prompt has 500 tokens, label {LABEL} is 0-99", id="out_of_range"),
        pytest.param("long", True, f"label {LABEL} is 'long', want MIN-MAX", id="unreadable"),
        pytest.param("0-99", False, None, id="disabled"),
    ],
)
def test_filter_drops_endpoints_for_other_lengths(
    label: str | None, *, enabled: bool, verdict: str | None
) -> None:
    request = RequestView(model="m", now=0.0, n_tokens=500)

    verdicts = judged(ContextLengthFilter(LABEL, enabled=enabled), request, [labelled(label)], rng=no_chance)

    assert verdicts == [verdict]


@pytest.mark.parametrize(
    ("label", "span"),
    [
        ("0-2048", (0, 2048)),
        (" 7 - 9 ", (7, 9)),
        ("9-7", None),
        ("7", None),
        ("1-2-3", None),
        ("-5", None),
        ("", None),
        ("a-b", None),
        ("²-³", None),
        (f"0-{'9' * 13}", None),
    ],
)
def test_ranges_are_read_as_min_and_max(label: str, span: tuple[int, int] | None) -> None:
    assert parse_range(label) == span
