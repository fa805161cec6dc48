"""What a CPU tier of another size would find, from one replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...indexer.reuse_distance import ReuseDistances


class SizeCurve:
    """Prompt tokens found, by the size of the caches.

    The CPU tier is written through, so that GPU and CPU together hold what one LRU cache of the larger one's size holds. Where
    requests go stays as it is, though routing by cache contents would follow another size.

    Args:
        servers: names.
        block_size: tokens a block.
        max_keys: blocks followed at most, by server.
    """

    def __init__(self, servers: Iterable[str], *, block_size: int, max_keys: int = 32_768) -> None:
        self._distances = {server: ReuseDistances(max_keys=max_keys) for server in servers}
        self._block_size = block_size

    def use(self, server: str, keys: Sequence[int], n_tokens: int) -> None:
        """A prompt of `n_tokens` whose full blocks have these keys was sent to the server."""
        self._distances[server].use(keys, n_blocks=n_tokens / self._block_size)

    def hit_rate(self, *, gpu_blocks: int, cpu_blocks: int) -> float:
        """Part of all prompt tokens that servers with such caches would have found, 0 to 1."""
        capacity = max(gpu_blocks, cpu_blocks)
        found = sum(each.hits([capacity])[0] for each in self._distances.values())
        return found / max(1.0, sum(each.n_blocks() for each in self._distances.values()))
