"""What a CPU tier of another size would find, from one replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .reuse_distance import ReuseDistances


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
        self._n_blocks = dict.fromkeys(self._distances, 0)
        self._block_size, self._n_tokens = block_size, 0

    def use(self, server: str, keys: Sequence[int], n_tokens: int) -> None:
        """A prompt of `n_tokens` whose full blocks have these keys was sent to the server."""
        self._distances[server].use(keys)
        self._n_blocks[server] += len(keys)
        self._n_tokens += n_tokens

    def hit_rate(self, *, gpu_blocks: int, cpu_blocks: int) -> float:
        """Part of all prompt tokens that servers with such caches would have found, 0 to 1."""
        capacity = max(gpu_blocks, cpu_blocks)
        found = sum(
            each.hit_rate(capacity) * self._n_blocks[server] for server, each in self._distances.items()
        )
        return found * self._block_size / max(1, self._n_tokens)
