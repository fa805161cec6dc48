"""The arithmetic of pairs: in C++, or in numpy if the native part was not built. Both versions give the same bits."""

from __future__ import annotations

try:
    from .._native import pair_times, placement_sums
except ImportError:  # installed without a C++ compiler
    from .pair_arithmetic import pair_times, placement_sums

__all__ = ("pair_times", "placement_sums")
