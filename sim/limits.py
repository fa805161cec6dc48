"""Largest sizes of simulations. They are far above what is useful, and keep a slip of the pen from taking all memory."""

from __future__ import annotations

from .errors import ReplayError

MAX_SERVERS = 1024
"""Servers in one simulation; live ones have sockets of their own."""

MAX_GPU_BLOCKS = 1_000_000
"""GPU blocks of a server: with 16 tokens per block as many as 4 TB hold."""

MAX_FLEET_BLOCKS = 10_000_000
"""Simulated GPU blocks of all servers, at about 150 bytes each: 1024 servers of the default size fit."""

MAX_CPU_BLOCKS = 1_000_000_000
MAX_CPU_GIB = 1_000_000
"""CPU tier of a server."""

MAX_SEEDS, MAX_TRIALS, MAX_JOBS = 1000, 10_000, 256

MAX_TOKENS = 10_000_000
"""Tokens of a request, and of a block id: ten times the context of the largest models."""

MAX_REQUESTS, MAX_IDS = 1_000_000, 50_000_000
"""Generated requests and their block ids, for all seeds together: about 2 GB."""

MAX_SPAN_S = 366 * 24 * 3600.0
"""Seconds from the first arrival to the last; a clock of doubles still resolves less than a microsecond."""


def check_fleet_blocks(servers: int, gpu_blocks: int) -> None:
    """Check the simulated GPU blocks of a fleet.

    Raises:
        ReplayError: there are too many.
    """
    if servers * gpu_blocks > MAX_FLEET_BLOCKS:
        raise ReplayError(
            f"{servers} servers with {gpu_blocks} simulated GPU blocks each have {servers * gpu_blocks}, want at most "
            f"{MAX_FLEET_BLOCKS}; use fewer servers, smaller --gpu-blocks, or for replay a larger --granularity"
        )
