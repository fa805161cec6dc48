"""Kept decisions with other weights: figures worked out by hand, and against decisions made anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvatlas.indexer.match import PrefixMatch, RankMatch
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.routing.preview import MAX_MOVED, Preview, preview
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate
from kvatlas.scorers.pickers.random_choice import RandomPicker
from support.candidates import TIERS, endpoint
from support.decisions import decided

BLOCK = 16


def cached(name: str, n_blocks: int) -> Candidate:
    held = RankMatch((n_blocks, 0, 0), (n_blocks, 0, 0), n_blocks)
    return endpoint(name, prefix=PrefixMatch(TIERS, BLOCK, 4, held, 0, {0: n_blocks * BLOCK}))


def previewed(decisions: Sequence[Decision], weights: Mapping[str, float]) -> tuple[Preview, int]:
    """Make the preview of decisions, the newest last, and count its pieces."""
    log = DecisionLog(max_count=1000, max_bytes=2**30)
    for number, decision in enumerate(decisions):
        log.add(decision, request_id=f"r{number}", at=float(number))
    pieces, n_pieces = preview(log.page(limit=1000), weights), 1
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value, n_pieces
        n_pieces += 1


def test_preview_counts_picks_and_cached_tokens_on_both_sides() -> None:
    fleet = [cached("e0", 0), cached("e1", 4), cached("e2", 2)]
    rows = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    decision = replace(decided(rows, [2, 1], candidates=fleet), n_tokens=70)
    assert decision.picked == ("e0",)

    found, _ = previewed([decision, decision], {"s0": 0.5})

    assert (found.n_decisions, found.n_changed, found.n_skipped) == (2, 2, 0)
    assert (found.before, found.after) == (Counter(e0=2), {"e1": 1.0, "e2": 1.0})
    assert (found.n_tokens, found.usable_before, found.usable_after) == (140, 0, 64 + 32)
    assert [(each.kept.request_id, each.leaders) for each in found.moved] == [
        ("r1", ("e1", "e2")),
        ("r0", ("e1", "e2")),
    ]


def test_preview_leaves_a_tie_as_chance_had_it() -> None:
    decision = decided([[1.0], [1.0]], [1])

    found, _ = previewed([decision], {"s0": 3.0})

    assert (found.n_changed, found.after) == (0, {decision.picked[0]: 1.0})


@pytest.mark.parametrize(
    "decision",
    [
        pytest.param(decided([[1.0], [0.0]], [1], picker=RandomPicker()), id="picked_at_random"),
        pytest.param(replace(decided([[1.0]], [1]), picked=()), id="nobody_picked"),
    ],
)
def test_preview_skips_decisions_that_weights_do_not_explain(decision: Decision) -> None:
    found, _ = previewed([decision], {"s0": 0.0})

    assert (found.n_decisions, found.n_skipped, found.before, found.after) == (0, 1, Counter(), {})


def test_preview_names_few_counts_all_and_pauses_on_the_way() -> None:
    decision = decided([[1.0, 0.0], *([[0.0, 1.0]] * 99)], [2, 1])

    found, n_pieces = previewed([decision] * 100, {"s0": 0.0})

    assert (found.n_changed, len(found.moved)) == (100, MAX_MOVED)
    assert found.moved[0].kept.request_id == "r99"
    assert n_pieces == 3
    assert sum(found.after.values()) == pytest.approx(100)


WEIGHT = st.integers(0, 8).map(lambda n: n / 4)
ROW = st.lists(st.integers(0, 4).map(lambda n: n / 4), min_size=2, max_size=2)


@given(
    tables=st.lists(st.lists(ROW, min_size=1, max_size=3), max_size=5),
    weights=st.tuples(WEIGHT, WEIGHT),
    others=st.tuples(WEIGHT, WEIGHT),
)
def test_preview_agrees_with_decisions_made_anew(
    tables: list[list[list[float]]], weights: tuple[float, float], others: tuple[float, float]
) -> None:
    decisions = [decided(rows, weights) for rows in tables]
    again = [decided(rows, others) for rows in tables]

    found, _ = previewed(decisions, {"s0": others[0], "s1": others[1]})

    n_changed = sum(
        before.picked[0] not in after.tied for before, after in zip(decisions, again, strict=True)
    )
    assert (found.n_decisions, found.n_changed) == (len(tables), n_changed)
    assert found.before == Counter(each.picked[0] for each in decisions)
    assert sum(found.after.values()) == pytest.approx(len(tables))
    assert [each.leaders for each in found.moved] == [
        after.tied
        for before, after in reversed(list(zip(decisions, again, strict=True)))
        if before.picked[0] not in after.tied
    ]
