"""The column operations that every decision makes: in C++, or in numpy if the native part was not built.

On tables of some dozen rows a call of numpy costs more than what it computes; both versions give the same bits.
"""

from __future__ import annotations

try:
    from .._native import (
        float_cells,
        int_cells,
        packed,
        pick_highest,
        pick_near,
        rate_by_free_part,
        rate_by_load,
        rate_by_share,
        weigh,
    )
except ImportError:  # installed without a C++ compiler
    from .arithmetic import (
        float_cells,
        int_cells,
        pick_highest,
        pick_near,
        rate_by_free_part,
        rate_by_load,
        rate_by_share,
        weigh,
    )
    from .lines import packed

__all__ = (
    "float_cells",
    "int_cells",
    "packed",
    "pick_highest",
    "pick_near",
    "rate_by_free_part",
    "rate_by_load",
    "rate_by_share",
    "weigh",
)
