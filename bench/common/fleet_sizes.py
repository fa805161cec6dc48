"""The sizes of fleets that every benchmark measures whose figures depend on them."""

from __future__ import annotations

import argparse

FLEET_SIZES = (8, 64, 256, 1024)
"""A small installation, a usual one, a large one, and as many servers as one picker is made for."""


def add_fleet_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the option `--endpoints`, the sizes of fleets."""
    shown = " ".join(map(str, FLEET_SIZES))
    parser.add_argument(
        "--endpoints", type=int, nargs="+", default=list(FLEET_SIZES), help=f"sizes of fleets ({shown})"
    )
