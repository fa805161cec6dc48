"""The arithmetic of the cost model: the native version gives the bits of its specification, for arrays of any layout."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvatlas.scorers.core.candidates import KV_UTILIZATION, N_STATE, TOKENS
from kvatlas.scorers.latency import arithmetic, fit_arithmetic, operations, release_arithmetic
from kvatlas.scorers.latency.lines import MEMORY, N_FEATURES, N_LINES, PREFILL, TOKENS_IN_USE
from kvatlas.scorers.latency.release_arithmetic import N_KNOWN, N_SURVIVAL

native = pytest.importorskip("kvatlas.scorers._native")

WHOLE = st.sampled_from((0.0, 1.0, 3.0, 700.0, 16_384.0))
UNKNOWN = WHOLE | st.sampled_from((0.3, 1 / 3, 0.97, np.nan))
LAYOUTS: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    lambda array: array,
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    np.asfortranarray,
)


def drawn(
    data: st.DataObject, shape: tuple[int, ...], numbers: st.SearchStrategy[Any], dtype: Any = np.float64
) -> NDArray[Any]:
    n = int(np.prod(shape))
    items = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype).reshape(shape)
    laid: NDArray[Any] = data.draw(st.sampled_from(LAYOUTS))(items)
    return laid


def both(name: str, *arguments: Any) -> Any:
    """Return the result of both versions, which is the same: an array, or several."""
    with np.errstate(all="ignore"):
        ours, theirs = getattr(native, name)(*arguments), getattr(arithmetic, name)(*arguments)
    several: list[Any] = list(ours) if name == "cost_quantities" else [ours]
    for mine, other in zip(several, theirs if name == "cost_quantities" else [theirs], strict=True):
        assert mine.shape == other.shape
        assert np.array_equal(mine, other, equal_nan=True)
    return ours


@given(st.data())
def test_features_totals_and_prices_are_alike(data: st.DataObject) -> None:
    n, n_tiers = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 3) | st.just(10))
    n_loads = data.draw(st.integers(0, n_tiers - 1))
    state, accounts = drawn(data, (N_STATE, n), UNKNOWN), drawn(data, (N_LINES, n), WHOLE)
    state[TOKENS] = 16.0  # the fleet books whole tokens, whose sum has no rounding errors
    if data.draw(st.booleans()):
        accounts = np.zeros((N_LINES, 1))
    accounts[TOKENS_IN_USE] = drawn(data, (accounts.shape[1],), UNKNOWN)
    blocks = st.integers(0, 40)
    held = None
    if data.draw(st.booleans()):
        reused = drawn(data, (n_tiers, n), blocks, np.int32) if data.draw(st.booleans()) else None
        sizes = drawn(data, (n,), blocks, np.int32) if data.draw(st.booleans()) else data.draw(blocks)
        held = drawn(data, (2 * n_tiers + 3, n), blocks, np.int32), reused, sizes
    costs = drawn(data, (N_FEATURES + n_loads + 1, n if data.draw(st.booleans()) else 1), UNKNOWN)
    pace = drawn(data, (n,), WHOLE) if data.draw(st.booleans()) else 1.3
    adapter = drawn(data, (n,), WHOLE) if data.draw(st.booleans()) else None
    numbers = tuple(data.draw(st.lists(WHOLE, min_size=6, max_size=6)))

    features, costs, totals = both(
        "cost_quantities", state, accounts, costs, pace, held, adapter, numbers, n_loads
    )

    both("cost_totals", features, costs)
    assert native.same_everywhere(features[PREFILL]) is arithmetic.same_everywhere(features[PREFILL])
    displaced = both("displaced_tokens", features, accounts, state, (500.0, 300.0, 3.0, 0.25))
    prices = (160.0, 3.0, 0.7, 5.0, 600.0, 0.02, 0.5, 1000.0, 5.0)
    token_ms = drawn(data, (data.draw(st.sampled_from((1, n))),), UNKNOWN)
    n_shared = data.draw(st.integers(0, 3))
    sharing = np.sort(drawn(data, (2, n_shared), WHOLE))
    both("fleet_costs", totals, features, costs, accounts, state, displaced, token_ms, sharing, prices)


@given(st.data())
def test_waits_are_alike(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    features, costs = (
        drawn(data, (N_FEATURES + 1, n), WHOLE).copy("C"),
        drawn(data, (N_FEATURES + 1, n), WHOLE),
    )
    features[MEMORY] = drawn(data, (n,), st.sampled_from((0.0, 30.0, 200.0, 690.0, 2000.0)))
    state = drawn(data, (N_STATE, n), UNKNOWN).copy("C")
    state[KV_UTILIZATION] = drawn(data, (n,), st.sampled_from((0.3, 0.97, 1.0, np.nan)))
    begun = drawn(data, (3, 2, N_KNOWN), st.sampled_from((0.0, 80.0, 499.3, 499.9))).copy("C")
    rows = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), np.intp)
    falling = np.sort(drawn(data, (N_SURVIVAL,), st.sampled_from((0.0, 0.3, 1 / 3, 1.0))))[::-1].copy()
    knowledge = state, begun, rows, falling, (500.0, 700.0)
    results = [(features.copy(), np.zeros(n)) for _ in range(2)]
    for version, (quantities, sums) in zip((native, release_arithmetic), results, strict=True):
        version.refine_waits(quantities, costs, sums, *knowledge)
    for mine, other in zip(*results, strict=True):
        assert np.array_equal(mine, other, equal_nan=True)


@given(
    rows=st.lists(st.lists(st.floats(0, 1e4), min_size=4, max_size=4), min_size=1, max_size=8),
    weight=st.floats(1e-6, 10.0),
    lows=st.lists(st.sampled_from((0.05, 0.5, 1.0)), min_size=4, max_size=4),
)
def test_regressions_are_alike(rows: list[list[float]], weight: float, lows: list[float]) -> None:
    sums = [(np.zeros((4, 4)), np.zeros(4)) for _ in range(2)]
    found = [[1.0] * 4, [1.0] * 4]

    for parts in rows:
        for number, version in enumerate((native, fit_arithmetic)):
            version.add_observation(*sums[number], parts, 1.5 * sum(parts) + 1.0, weight, 0.999)
            found[number] = version.solved(found[number], *sums[number], lows, 20.0, 3)

    assert found[0] == found[1]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*sums, strict=True))


STATE, ACCOUNTS, NUMBERS = np.zeros((N_STATE, 2)), np.zeros((N_LINES, 2)), (0.0,) * 6
FIGURES = np.zeros((5, 2), np.int32)


def quantities(**given: Any) -> object:
    arguments: dict[str, Any] = {
        "state": STATE, "accounts": ACCOUNTS, "costs": np.ones((7, 1)), "pace": 1.0, "held": None,
        "adapter": None, "numbers": NUMBERS, "n_loads": 0,
    }  # fmt: skip
    return native.cost_quantities(**(arguments | given))


def waits(**given: Any) -> object:
    arguments: dict[str, Any] = {
        "features": np.zeros((9, 2)), "costs": np.ones((9, 2)), "totals": np.zeros(2), "state": STATE,
        "begun": np.zeros((3, 2, N_KNOWN)), "rows": np.zeros(2, np.intp), "survival": np.zeros(N_SURVIVAL),
        "numbers": (0.0, 1.0),
    }  # fmt: skip
    return native.refine_waits(**(arguments | given))


def prices(**given: Any) -> object:
    arguments: dict[str, Any] = {
        "ttft_ms": np.ones(2), "features": np.ones((9, 2)), "costs": np.ones((9, 2)), "accounts": ACCOUNTS,
        "state": STATE, "displaced": np.ones(2), "token_ms": np.ones(2), "sharing": np.zeros((2, 0)),
        "numbers": (1.0,) * 9,
    }  # fmt: skip
    return native.fleet_costs(**(arguments | given))


@pytest.mark.parametrize("call", [quantities, waits, prices])
def test_arguments_are_well_formed_without_a_change(call: Callable[[], object]) -> None:
    call()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: quantities(state=STATE[:3]), id="state"),
        pytest.param(lambda: quantities(accounts=np.zeros((N_LINES, 3))), id="accounts"),
        pytest.param(lambda: quantities(costs=np.ones((6, 2))), id="costs"),
        pytest.param(lambda: quantities(costs=np.ones((7, 2), np.float32)), id="short_floats"),
        pytest.param(lambda: quantities(pace=np.ones(3)), id="pace"),
        pytest.param(lambda: quantities(adapter=1.0), id="adapter"),
        pytest.param(lambda: quantities(numbers=NUMBERS[:4]), id="numbers"),
        pytest.param(lambda: quantities(held=FIGURES), id="held"),
        pytest.param(lambda: quantities(held=(FIGURES, None, 16), n_loads=1), id="tiers"),
        pytest.param(lambda: native.cost_totals(STATE, STATE[:3]), id="lines"),
        pytest.param(lambda: native.displaced_tokens(STATE, ACCOUNTS, STATE, NUMBERS), id="displacement"),
        pytest.param(lambda: waits(begun=np.zeros((3, 2, 5))), id="begun"),
        pytest.param(lambda: waits(rows=np.zeros(2)), id="rows"),
        pytest.param(lambda: waits(survival=np.zeros(3)), id="survival"),
        pytest.param(lambda: waits(features=np.zeros((3, 2))), id="features"),
        pytest.param(lambda: waits(features=np.zeros((9, 4))[:, ::2]), id="stride"),
        pytest.param(lambda: prices(costs=np.ones((9, 3))), id="prices"),
        pytest.param(lambda: prices(costs=np.ones((7, 2))), id="prices_of_loads"),
        pytest.param(lambda: prices(token_ms=np.ones(3)), id="token_times"),
        pytest.param(lambda: prices(sharing=np.zeros((1, 3))), id="sharing"),
        pytest.param(
            lambda: native.add_observation(np.zeros((2, 2)), np.zeros(3), [1.0, 1.0], 1.0, 1.0, 1.0),
            id="products",
        ),
        pytest.param(lambda: native.solved([1.0], np.zeros((1, 1)), np.zeros(1), [0.1], "9", 3), id="text"),
        pytest.param(
            lambda: native.solved([1.0], np.zeros((1, 1)), np.zeros(1), [0.1, 0.1], 9.0, 3), id="lows"
        ),
    ],
)
def test_malformed_arguments_raise(call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        call()


def test_the_specification_is_used_when_nothing_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvatlas.scorers._native", None)
    monkeypatch.delitem(sys.modules, operations.__name__)

    chosen = runpy.run_module(operations.__name__)

    specified = {arithmetic.__name__, fit_arithmetic.__name__, release_arithmetic.__name__}
    assert {chosen[name].__module__ for name in operations.__all__} == specified
    assert {getattr(operations, name).__module__ for name in operations.__all__} == {native.__name__}
