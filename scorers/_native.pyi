# Arithmetic on columns in C++, scorers/native. Use it through `core/operations`; `core/arithmetic` is its specification.
#
# Arrays are read in any layout. Every function raises `TypeError` or `ValueError` for malformed arguments.

from collections.abc import Callable, Sequence

from .core.columns import CodeArray, FloatArray, IntArray, Mask, RowArray
from .latency.arithmetic import (
    DisplacementNumbers,
    Held,
    PriceNumbers,
    Quantities,
    RequestNumbers,
)
from .latency.pair_arithmetic import (
    Answering,
    Computing,
    PairNumbers,
    Pairs,
    PlacementNumbers,
    Receiving,
)
from .latency.release_arithmetic import WaitNumbers

def rate_by_load(column: FloatArray, /) -> FloatArray: ...
def rate_by_free_part(column: FloatArray, /) -> FloatArray: ...
def rate_by_share(
    blocks: FloatArray | IntArray, n_blocks: IntArray | int, credit: FloatArray
) -> FloatArray: ...
def weigh(
    columns: Sequence[object], weights: tuple[float, ...], n: int
) -> tuple[FloatArray, FloatArray] | None: ...
def pick_highest(totals: FloatArray, rng: Callable[[], float]) -> tuple[int, bool]: ...
def pick_near(totals: FloatArray, resolution: float, rng: Callable[[], float]) -> tuple[int, bool]: ...
def float_cells(table: FloatArray, row: int) -> tuple[float, ...]: ...
def int_cells(table: IntArray, row: int) -> tuple[int, ...]: ...
def packed(state: FloatArray, now: float, counts: Sequence[IntArray | CodeArray | Mask]) -> bytes: ...

# Of the cost model: use them through `latency/operations`; `latency/arithmetic` is their specification.
def cost_quantities(
    state: FloatArray,
    accounts: FloatArray,
    costs: FloatArray,
    pace: FloatArray | float,
    held: Held | None,
    adapter: FloatArray | None,
    numbers: RequestNumbers,
    n_loads: int,
) -> Quantities: ...
def cost_totals(features: FloatArray, costs: FloatArray) -> FloatArray: ...
def fleet_costs(
    ttft_ms: FloatArray,
    features: FloatArray,
    costs: FloatArray,
    accounts: FloatArray,
    state: FloatArray,
    displaced: FloatArray,
    token_ms: FloatArray,
    sharing: FloatArray,
    numbers: PriceNumbers,
) -> FloatArray: ...
def refine_waits(
    features: FloatArray,
    costs: FloatArray,
    totals: FloatArray,
    state: FloatArray,
    begun: FloatArray,
    rows: RowArray,
    survival: FloatArray,
    numbers: WaitNumbers,
) -> None: ...
def same_everywhere(uncached: FloatArray, /) -> bool: ...
def displaced_tokens(
    features: FloatArray, accounts: FloatArray, state: FloatArray, numbers: DisplacementNumbers
) -> FloatArray: ...
def add_observation(
    squares: FloatArray,
    products: FloatArray,
    parts: Sequence[float],
    observed: float,
    weight: float,
    decay: float,
) -> None: ...
def solved(
    factors: Sequence[float],
    squares: FloatArray,
    products: FloatArray,
    lows: Sequence[float],
    high: float,
    n_sweeps: int,
) -> list[float]: ...

# Of pairs: use them through `latency/pair_operations`; `latency/pair_arithmetic` is their specification.
def pair_times(
    computing: Computing,
    receiving: Receiving,
    speeds: FloatArray,
    numbers: PairNumbers,
    prefill_ms: FloatArray,
    times_ms: FloatArray,
) -> None: ...
def placement_sums(
    answering: Answering,
    computing: Pairs | None,
    is_apart: Mask | None,
    numbers: PlacementNumbers,
    alone: FloatArray,
    others: FloatArray,
    pairs: FloatArray,
) -> None: ...
