"""The arithmetic of pairs: the native functions give the bits of their specification, for arrays of any layout."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvatlas.scorers.core.candidates import N_STATE
from kvatlas.scorers.latency import pair_arithmetic as numpy_version
from kvatlas.scorers.latency.lines import N_LINES
from kvatlas.scorers.latency.pair_arithmetic import (
    Answering,
    Computing,
    PairNumbers,
    Pairs,
    PlacementNumbers,
    Receiving,
)

native = pytest.importorskip("kvatlas.scorers._native")

N_FEATURES = 9
SIZES = [(1, 1), (1, 3), (4, 1), (2, 9), (17, 12)]
LAYOUTS: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    lambda array: array,
    lambda array: np.repeat(array, 3, axis=-1)[..., ::3],
    lambda array: array[..., ::-1].copy()[..., ::-1],
    np.asfortranarray,
)
"""The same numbers side by side, with gaps, backwards, and by columns."""


class Drawn:
    """Numbers of one draw: zeros, equal ones and unknown ones among them, in any layout."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def numbers(self, *shape: int, unknown: float = 0.0) -> NDArray[np.float64]:
        n = int(np.prod(shape))
        drawn = [
            np.nan
            if self._rng.random() < unknown
            else self._rng.choice((0.0, 1.0, 2.5, self._rng.uniform(0.0, 5000.0)))
            for _ in range(n)
        ]
        return self._rng.choice(LAYOUTS)(np.array(drawn).reshape(shape))

    def costs(self, n: int) -> NDArray[np.float64]:
        return self.numbers(N_FEATURES, self._rng.choice((1, n))) + 0.01

    def features(self, n: int) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.numbers(N_FEATURES, n))

    def rows(self, n: int) -> NDArray[np.intp]:
        return np.array(self._rng.sample(range(2 * n), n), np.intp)


def same(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    return ours.shape == theirs.shape and np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize(("p", "d"), SIZES)
@pytest.mark.parametrize("seed", range(8))
def test_pair_times_are_those_of_the_specification(p: int, d: int, seed: int) -> None:
    drawn = Drawn(seed)
    features, costs, accounts = drawn.features(p), drawn.costs(p), drawn.numbers(N_LINES, p)
    state, tail = drawn.numbers(N_STATE, p, unknown=0.2), drawn.numbers(3, random.Random(seed).choice((1, p)))
    receiving = Receiving(
        drawn.features(d), drawn.costs(d), drawn.numbers(N_LINES, d), drawn.numbers(d), drawn.numbers(d)
    )
    speeds = drawn.numbers(p, d) if seed % 2 else drawn.numbers(1, 1)
    found: list[NDArray[np.float64]] = []

    for version in (native, numpy_version):
        written = features.copy()
        prefill_ms, times_ms = np.full(p, np.nan), np.full((3, p, d), np.nan)
        computing = Computing(written, costs, accounts, state, tail)
        version.pair_times(computing, receiving, speeds, PairNumbers(2.0, 5.0, 0.2), prefill_ms, times_ms)
        found += [written, prefill_ms, times_ms]

    assert all(same(ours, theirs) for ours, theirs in zip(found[:3], found[3:], strict=True))
    assert not np.isnan(found[2]).any()


@pytest.mark.parametrize(("p", "d"), SIZES)
@pytest.mark.parametrize("seed", range(8))
def test_placement_sums_are_those_of_the_specification(p: int, d: int, seed: int) -> None:
    drawn = Drawn(seed)
    answering = Answering(
        drawn.features(d),
        drawn.costs(d),
        drawn.numbers(d),
        drawn.numbers(d),
        drawn.numbers(N_STATE, d, unknown=0.2),
        drawn.rows(d),
    )
    computing = Pairs(drawn.features(p), drawn.costs(p), drawn.numbers(p, d), drawn.rows(p))
    is_apart = None if seed % 3 == 0 else np.array([number % 2 == 0 for number in range(d)])
    numbers = PlacementNumbers(30.0, 0.15, 300.0, 0.5, 15.0, 900.0, 0.004, 0.001)
    found: list[NDArray[np.float64]] = []

    for version in (native, numpy_version):
        results = np.full((5, d), np.nan), np.full(p, np.nan), np.full((p, d), np.nan)
        version.placement_sums(answering, computing, is_apart, numbers, *results)
        alone = np.full((5, d), np.nan)
        version.placement_sums(answering, None, None, numbers, alone, np.empty(0), np.empty((0, d)))
        found += [*results, alone]

    assert all(same(ours, theirs) for ours, theirs in zip(found[:4], found[4:], strict=True))
    assert not any(np.isnan(each).any() for each in found)


def test_arrays_of_the_wrong_shape_or_type_are_refused() -> None:
    drawn = Drawn(1)
    numbers = PlacementNumbers(30.0, 0.15, 300.0, 0.5, 15.0, 900.0, 0.004, 0.001)

    def answering(**other: Any) -> Answering:
        rows = np.arange(2)
        whole = Answering(
            drawn.features(2),
            drawn.costs(2),
            drawn.numbers(2),
            drawn.numbers(2),
            drawn.numbers(N_STATE, 2),
            rows,
        )
        return whole._replace(**other)

    def sums(given: Any, alone: Any) -> None:
        native.placement_sums(given, None, None, numbers, alone, np.empty(0), np.empty((0, 2)))

    with pytest.raises(ValueError, match="tpot_ms has 1 lines of 3 rows, want 1 of 2"):
        sums(answering(tpot_ms=np.zeros(3)), np.empty((5, 2)))
    with pytest.raises(ValueError, match="alone has 4 lines of 2 rows"):
        sums(answering(), np.empty((4, 2)))
    with pytest.raises(TypeError, match="ttft_ms must be an array of 'd'"):
        sums(answering(ttft_ms=np.zeros(2, np.int32)), np.empty((5, 2)))
    with pytest.raises(TypeError):
        sums((1, 2), np.empty((5, 2)))
