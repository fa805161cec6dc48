"""The arithmetic of the cost model: in C++, or in numpy and Python if the native part was not built.

Both versions give the same bits; see `core.operations`.
"""

from __future__ import annotations

try:
    from .._native import (
        add_observation,
        cost_quantities,
        cost_totals,
        displaced_tokens,
        fleet_costs,
        refine_waits,
        same_everywhere,
        solved,
    )
except ImportError:  # installed without a C++ compiler
    from .arithmetic import (
        cost_quantities,
        cost_totals,
        displaced_tokens,
        fleet_costs,
        same_everywhere,
    )
    from .fit_arithmetic import add_observation, solved
    from .release_arithmetic import refine_waits

__all__ = (
    "add_observation",
    "cost_quantities",
    "cost_totals",
    "displaced_tokens",
    "fleet_costs",
    "refine_waits",
    "same_everywhere",
    "solved",
)
