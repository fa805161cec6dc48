"""The log of decisions: bounded by number and memory, found by id, listed in pages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvatlas.configs.section import MAX_NAME_CHARS
from kvatlas.indexer.match import PrefixMatch, RankMatch
from kvatlas.routing.control_headers import MAX_ID_CHARS
from kvatlas.routing.decision_log import DecisionLog, decision_families, size_bytes
from kvatlas.scorers.core.candidates import Directory
from kvatlas.scorers.core.decision import Decision, Origin
from kvatlas.scorers.core.model import Candidate
from support.candidates import TIERS, endpoint, load
from support.decisions import decided

DECISIONS = [decided([[1.0], [0.5]], [1]).lasting(), decided([[0.5], [1.0]], [1]).lasting()]
ONE = size_bytes(DECISIONS[0])


def fleet(n_endpoints: int, *, n_runs: int, n_ranks: int) -> list[Candidate]:
    """Endpoints that share nothing but their tiers: each with a load and a prefix of its own."""
    return [
        endpoint(
            f"e{number}",
            of=load(waiting=1000 + number, running=2000 + number, kv=number / 1000),
            prefix=prefix(number, n_runs, n_ranks) if n_runs else None,
            in_flight=(300 + number, 400 + number),
        )
        for number in range(n_endpoints)
    ]


def prefix(number: int, n_runs: int, n_ranks: int) -> PrefixMatch:
    """Figures that no other endpoint has."""
    first = 1000 + 3 * number
    figures = tuple(range(first, first + 3))
    runs = tuple((each % 2, 300 + each) for each in range(n_runs))
    held = RankMatch(figures, tuple(each + 1 for each in figures), first + 9, runs)
    return PrefixMatch(TIERS, 16, 2000, held, 0, {rank: 5000 + rank for rank in range(n_ranks)})


def deep_size(value: object, seen: set[int]) -> int:
    """Bytes of a value and all that only it and its parts refer to; decisions share the directory of their endpoints."""
    if id(value) in seen or value is TIERS or isinstance(value, Enum | Directory) or callable(value):
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, np.dtype[Any]]", value)
        return sys.getsizeof(array) + deep_size(array.base, seen)
    return sys.getsizeof(value) + sum(deep_size(part, seen) for part in parts_of(value))


def parts_of(value: object) -> Iterable[object]:
    if isinstance(value, tuple | list):
        return cast("Sequence[object]", value)
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value)
        return [*pairs, *pairs.values()]
    names: Sequence[str] = getattr(value, "__struct_fields__", getattr(value, "__slots__", ()))
    return [getattr(value, name) for name in names]


@pytest.mark.parametrize("n_endpoints", [1, 8, 64])
@pytest.mark.parametrize("n_scorers", [1, 4])
@pytest.mark.parametrize(("n_runs", "n_ranks"), [(0, 0), (1, 1), (300, 1), (2, 16)])
def test_decision_takes_no_more_memory_than_it_is_counted_with(
    n_endpoints: int, n_scorers: int, n_runs: int, n_ranks: int
) -> None:
    rows = [[(number + term) / 1000 for term in range(n_scorers)] for number in range(n_endpoints)]
    candidates = fleet(n_endpoints, n_runs=n_runs, n_ranks=n_ranks)
    longest = ("x" * MAX_ID_CHARS, "y" * MAX_ID_CHARS, "z" * MAX_ID_CHARS, 1000, "w" * MAX_ID_CHARS)
    decision = decided(rows, [1.0] * n_scorers, candidates=candidates)
    decision = replace(decision, model="\N{GRINNING FACE}" * MAX_NAME_CHARS, origin=Origin(*longest))
    log = DecisionLog(max_count=1, max_bytes=2**30)
    log.add(decision, request_id="x" * MAX_ID_CHARS, at=0.5)

    taken = deep_size(log.get("x" * MAX_ID_CHARS), set())

    assert taken <= log.size_bytes <= 4 * taken


def ids(log: DecisionLog, *, limit: int = 100, endpoint: str | None = None, before: int | None = None) -> str:
    return "".join(kept.request_id for kept in log.page(limit=limit, endpoint=endpoint, before=before))


def filled(request_ids: str, *, max_count: int = 100, max_bytes: int = 100 * ONE) -> DecisionLog:
    log = DecisionLog(max_count=max_count, max_bytes=max_bytes)
    for at, request_id in enumerate(request_ids):
        log.add(DECISIONS[at % 2], request_id=request_id, at=float(at))
    return log


@pytest.mark.parametrize(
    ("max_count", "max_bytes", "kept"),
    [
        pytest.param(100, 100 * ONE, "edcba", id="room_for_all"),
        pytest.param(2, 100 * ONE, "ed", id="by_number"),
        pytest.param(100, 3 * ONE, "edc", id="by_memory"),
        pytest.param(100, 1, "e", id="newest_always"),
        pytest.param(0, 100 * ONE, "", id="none"),
    ],
)
def test_oldest_decisions_give_way_when_there_is_no_room(max_count: int, max_bytes: int, kept: str) -> None:
    log = filled("abcde", max_count=max_count, max_bytes=max_bytes)

    assert (ids(log), len(log), log.size_bytes) == (kept, len(kept), len(kept) * ONE)
    assert [log.get(request_id) is not None for request_id in "abcde"] == [each in kept for each in "abcde"]
    families = {family.name: family.samples[0].value for family in decision_families(log)}
    assert families == {"kvatlas_decisions_kept": len(kept), "kvatlas_decisions_kept_bytes": len(kept) * ONE}


def test_newest_of_several_decisions_is_found_when_an_id_comes_again() -> None:
    log = filled("aba", max_count=2)

    kept = log.get("a")

    assert kept is not None
    assert (kept.at, ids(log)) == (2.0, "ab")


def test_long_ids_are_cut_and_still_found() -> None:
    log = DecisionLog(max_count=1, max_bytes=ONE)
    log.add(DECISIONS[0], request_id="x" * 10_000, at=0.0)

    kept = log.get("x" * 10_000)

    assert kept is not None
    assert kept.request_id == "x" * MAX_ID_CHARS


@pytest.mark.parametrize(
    ("limit", "endpoint", "before", "found"),
    [
        pytest.param(2, None, None, "fe", id="limit"),
        pytest.param(100, "e1", None, "fdb", id="endpoint"),
        pytest.param(100, None, 3_000_000, "cba", id="before"),
        pytest.param(1, "e0", 4_000_000, "c", id="together"),
        pytest.param(100, "unknown", None, "", id="nothing"),
    ],
)
def test_page_is_newest_first(limit: int, endpoint: str | None, before: int | None, found: str) -> None:
    assert ids(filled("abcdef"), limit=limit, endpoint=endpoint, before=before) == found


@given(
    workers=st.lists(
        st.lists(st.sampled_from([0.0, 5.0, 5.00001, 5.0001, 4.0]), max_size=8), min_size=1, max_size=3
    )
)
def test_numbers_are_those_of_one_decision_and_grow(workers: list[list[float]]) -> None:
    seen: set[int] = set()
    for worker, times in enumerate(workers):
        log = DecisionLog(max_count=100, max_bytes=100 * ONE, worker=worker)
        for at in times:
            log.add(DECISIONS[0], request_id="a", at=at)
        numbers = [kept.number for kept in log.page(limit=100)]
        assert numbers == sorted(numbers, reverse=True)
        assert not seen.intersection(numbers)
        assert all(number >= int(at * 1e6) - 64 for number, at in zip(numbers, times[::-1], strict=True))
        seen.update(numbers)
    assert len(seen) == sum(map(len, workers))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(DECISIONS)), max_size=30), st.integers(1, 6)
)
def test_log_is_the_tail_of_all_decisions(added: list[tuple[str, Decision]], n_kept: int) -> None:
    log = DecisionLog(max_count=100, max_bytes=n_kept * ONE)
    for request_id, decision in added:
        log.add(decision, request_id=request_id, at=0.0)

    tail = added[-n_kept:]
    assert [(kept.request_id, kept.decision) for kept in log.page(limit=100)] == tail[::-1]
    for request_id in "abc":
        kept = log.get(request_id)
        of_it = [decision for each, decision in tail if each == request_id]
        assert (kept.decision if kept else None) is (of_it[-1] if of_it else None)
