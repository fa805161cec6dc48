"""Hit rates for other sizes of the CPU tier, computed from one replay."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ...indexer.factory import index_core


class SizeCurve:
    """Hit rate as a function of the cache size.

    The CPU tier is write-through, so GPU and CPU together hold the same as one LRU cache with the size of the larger tier.
    The routing is not changed, although routing by cache contents would depend on the size.

    Args:
        servers: names.
        block_size: tokens per block.
        max_keys: maximum number of tracked blocks per server.
    """

    def __init__(self, servers: Iterable[str], *, block_size: int, max_keys: int = 32_768) -> None:
        make = index_core().reuse_distances
        self._distances = {
            server: make(max_keys=max_keys, max_capacity=None, half_life_s=None) for server in servers
        }
        self._block_size = block_size

    def use(self, server: str, keys: array[int], n_tokens: int) -> None:
        """Record a prompt of `n_tokens`, whose full blocks have these keys, on a server."""
        self._distances[server].use(keys, 1, n_tokens / self._block_size, 0.0)

    def hit_rate(self, *, gpu_blocks: int, cpu_blocks: int) -> float:
        """Return the fraction of all prompt tokens that servers with such caches would have found, 0 to 1."""
        capacity = max(gpu_blocks, cpu_blocks)
        found = sum(each.hits([capacity], now=0.0)[0] for each in self._distances.values())
        return found / max(1.0, sum(each.n_blocks(now=0.0) for each in self._distances.values()))
