"""The column operations of decisions: the native ones give the bits of their specification, for arrays of any layout."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvatlas.scorers.core import arithmetic, lines
from kvatlas.scorers.core.candidates import N_STATE

native = pytest.importorskip("kvatlas.scorers._native")

NUMBERS = st.sampled_from((0.0, 1.0, 2.0, 0.1, 1 / 3, 7.5, 300.0, 70_000.0, 1e300, np.nan)) | st.floats()
SCORES = st.sampled_from((0.0, 1.0, 0.1, 1 / 3, 0.7)) | st.floats(0, 1)
LAYOUTS: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    lambda array: array,
    lambda array: np.repeat(array, 3, axis=-1)[..., ::3],
    lambda array: array[..., ::-1].copy()[..., ::-1],
    np.asfortranarray,
)
"""The same numbers side by side, with gaps, backwards, and by columns."""


def same(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and np.array_equal(ours, theirs, equal_nan=True)
    )


@st.composite
def columns(draw: st.DrawFn, numbers: st.SearchStrategy[float] = NUMBERS) -> NDArray[np.float64]:
    drawn = np.array(draw(st.lists(numbers, max_size=12)), np.float64)
    layout = draw(st.sampled_from(LAYOUTS))
    laid: NDArray[np.float64] = layout(drawn)
    return laid


def filled(
    draw: st.DrawFn, shape: tuple[int, ...], numbers: st.SearchStrategy[Any], dtype: Any
) -> NDArray[Any]:
    n = int(np.prod(shape))
    items = np.array(draw(st.lists(numbers, min_size=n, max_size=n)), dtype).reshape(shape)
    layout = draw(st.sampled_from(LAYOUTS))
    laid: NDArray[Any] = layout(items)
    return laid


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:overflow encountered")
@given(column=columns())
def test_load_and_free_part_are_rated_alike(column: NDArray[np.float64]) -> None:
    assert same(native.rate_by_load(column), arithmetic.rate_by_load(column))
    assert same(native.rate_by_free_part(column), arithmetic.rate_by_free_part(column))


@given(st.data())
def test_shares_are_rated_alike(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(0, 8)),)
    counts = st.integers(0, 40)
    blocks = data.draw(
        st.one_of(
            st.composite(filled)(shape, counts, np.int32),
            st.composite(filled)(shape, st.floats(0, 40), np.float64),
        )
    )
    sizes = data.draw(st.one_of(st.integers(0, 2000), st.composite(filled)(shape, counts, np.int32)))
    credit = data.draw(st.composite(filled)(shape, NUMBERS, np.float64))

    with np.errstate(over="ignore"):  # of the largest credits
        expected = arithmetic.rate_by_share(blocks, sizes, credit)
    assert same(native.rate_by_share(blocks, sizes, credit), expected)


@given(st.data())
def test_scores_are_weighed_alike(data: st.DataObject) -> None:
    n, n_scorers = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 5))
    given_scores = [data.draw(st.composite(filled)((n,), SCORES, np.float64)) for _ in range(n_scorers)]
    weights = tuple(data.draw(st.lists(st.floats(0, 9), min_size=n_scorers, max_size=n_scorers)))

    ours, theirs = native.weigh(given_scores, weights, n), arithmetic.weigh(given_scores, weights, n)

    assert ours is not None
    assert theirs is not None
    assert same(ours[0], theirs[0])
    assert same(ours[1], theirs[1])


@pytest.mark.parametrize("version", [native, arithmetic])
@pytest.mark.parametrize(
    "column",
    [
        np.array([0.5, 1.1]),
        np.array([-0.1, 0.5]),
        np.array([0.5, np.nan]),
        np.array([0.5]),
        np.array([0.5, 0.5, 0.5]),
        np.array([[0.5], [0.5]]),
        np.array([2, 0]),
        np.array([0.5, 0.5j]),
        np.array([0.5, 0.5], object),
        [0.5, 0.5],
        None,
    ],
)
def test_columns_that_are_no_scores_are_left_to_repair(version: Any, column: Any) -> None:
    good = np.array([0.0, 1.0])

    assert version.weigh([good, column], (1.0, 1.0), 2) is None
    assert version.weigh([good, good], (1.0, 1.0), 2) is not None


@pytest.mark.parametrize("dtype", ["f4", ">f8", "f2", "i8", "u1", "?", ">i2"])
def test_numbers_of_other_types_are_weighed_alike(dtype: str) -> None:
    columns = [np.array([1.0, 0.5, 0.0]), np.array([0.1, 1, 0]).astype(dtype)]

    ours, theirs = native.weigh(columns, (2.0, 1.0), 3), arithmetic.weigh(columns, (2.0, 1.0), 3)

    assert theirs is not None
    assert same(ours[0], theirs[0])
    assert same(ours[1], theirs[1])


@given(
    totals=columns(st.sampled_from((0.0, 1.0, 2.5)) | st.floats(0, 9)).filter(len), seed=st.integers(0, 99)
)
def test_highest_total_is_picked_with_the_same_draws(totals: NDArray[np.float64], seed: int) -> None:
    ours, theirs = random.Random(seed), random.Random(seed)

    assert native.pick_highest(totals, ours.random) == arithmetic.pick_highest(totals, theirs.random)
    assert ours.random() == theirs.random()


@given(
    totals=columns(st.sampled_from((0.0, 1.0, 1.1)) | st.floats(0, 9)).filter(len),
    resolution=st.floats(1e-9, 9),
    seed=st.integers(0, 99),
)
def test_near_total_is_picked_with_the_same_draws(
    totals: NDArray[np.float64], resolution: float, seed: int
) -> None:
    ours, theirs = random.Random(seed), random.Random(seed)

    picked = native.pick_near(totals, resolution, ours.random)
    assert picked == arithmetic.pick_near(totals, resolution, theirs.random)
    assert ours.random() == theirs.random()
    assert totals[picked[0]] >= totals.max() - resolution


@pytest.mark.parametrize("drawn", [1.0, -0.5, "0"])
def test_draw_out_of_range_is_an_error(drawn: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        native.pick_highest(np.array([1.0, 1.0, 1.0]), lambda: drawn)


@given(st.data())
def test_cells_and_packed_lines_are_alike_and_read_as_they_were(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 9)) * data.draw(st.sampled_from((1, 1, 7)))
    state = data.draw(st.composite(filled)((N_STATE, n), NUMBERS | st.just(0.0), np.float64))
    counts: list[NDArray[Any]] = [
        data.draw(st.composite(filled)((n,), st.integers(0, 4), np.int8)),
        data.draw(st.composite(filled)((n,), st.booleans(), np.bool_)),
        data.draw(st.composite(filled)((4, n), st.sampled_from((0, 0, 1, 300, 70_000)), np.int32)),
    ]

    with np.errstate(over="ignore", invalid="ignore"):
        ours, theirs = native.packed(state, 7.5, counts), lines.packed(state, 7.5, counts)
        read = lines.unpacked(ours, n=n, n_lines=N_STATE + 6)

        assert ours == theirs
        wanted = [
            *np.fmin(np.fmax(state[:3], 0.0), 2**32 - 1).astype(np.uint32),
            *state[3:].astype(np.float32),
        ]
        wanted[4] = (7.5 - state[4]).astype(np.float32)
    for line, expected in zip(read, [*wanted, *counts[:2], *counts[2]], strict=True):
        assert np.array_equal(line, expected.astype(np.float64), equal_nan=True)
    for row in range(n):
        assert native.int_cells(counts[2], row) == tuple(counts[2][:, row].tolist())
        assert repr(native.float_cells(state, row)) == repr(arithmetic.float_cells(state, row))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: native.rate_by_load([1.0]), id="list"),
        pytest.param(lambda: native.rate_by_load(np.zeros((2, 2))), id="matrix"),
        pytest.param(lambda: native.rate_by_load(np.zeros(2, np.float32)), id="short_floats"),
        pytest.param(lambda: native.rate_by_share(np.zeros(2), 1, np.zeros(3)), id="lengths"),
        pytest.param(lambda: native.rate_by_share(np.zeros(2, np.int64), 1, np.zeros(2)), id="long_integers"),
        pytest.param(
            lambda: native.rate_by_share(np.zeros(2), np.zeros(3, np.int32), np.zeros(2)), id="sizes"
        ),
        pytest.param(lambda: native.rate_by_share(np.zeros(2), 2**2000, np.zeros(2)), id="huge"),
        pytest.param(lambda: native.weigh([], [], 1), id="weights_in_a_list"),
        pytest.param(lambda: native.weigh([], (1.0,), 1), id="weights"),
        pytest.param(lambda: native.weigh([np.zeros(1)], ("1",), 1), id="text"),
        pytest.param(lambda: native.weigh([], (), -1), id="negative"),
        pytest.param(lambda: native.pick_highest(np.zeros(0), random.random), id="no_totals"),
        pytest.param(lambda: native.pick_near(np.zeros(0), 1.0, random.random), id="no_near_totals"),
        pytest.param(lambda: native.pick_near(np.zeros(1), "1", random.random), id="no_resolution"),
        pytest.param(lambda: native.float_cells(np.zeros((2, 2)), 2), id="row"),
        pytest.param(lambda: native.int_cells(np.zeros((2, 2)), 0), id="floats"),
        pytest.param(lambda: native.packed(np.zeros((2, 2)), 0.0, []), id="state"),
        pytest.param(lambda: native.packed(np.zeros((7, 2)), 0.0, [np.zeros(3, np.int8)]), id="counts"),
        pytest.param(lambda: native.packed(np.zeros((7, 2)), 0.0, [np.zeros(2)]), id="float_counts"),
        pytest.param(lambda: native.packed(np.zeros((7, 2)), 0.0, [[1, 2]]), id="list_counts"),
    ],
)
def test_malformed_arguments_raise(call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, OverflowError)):
        call()
