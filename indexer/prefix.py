"""One prompt as the index sees it: the keys of its full blocks, at any block size, computed once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from .keys import PrefixKeys, prefix_keys, root_key


class Prefix:
    """Keys of one prompt's full blocks, by block size.

    Args:
        tokens: token ids as `array('I')`.
        lora: adapter the prompt is for.
        salt: cache salt of the request.
        seed: seed of the block keys.
        make_keys: makes them.
    """

    def __init__(
        self,
        tokens: array[int],
        *,
        lora: str | None = None,
        salt: str | None = None,
        seed: int = 0,
        make_keys: PrefixKeys = prefix_keys,
    ) -> None:
        self.n_tokens = len(tokens)
        self._tokens = tokens
        self._root = root_key(lora=lora, salt=salt, seed=seed)
        self._seed, self._make_keys = seed, make_keys
        self._keys: dict[int, array[int]] = {}

    @classmethod
    def from_keys(cls, keys: Mapping[int, array[int]], *, n_tokens: int | None = None) -> Prefix:
        """A prefix of which only the keys are known; without `n_tokens` every block may be reused by the engine."""
        prefix = cls(array("I"))
        prefix._keys.update(keys)
        prefix.n_tokens = (
            max((size * len(k) + 1 for size, k in keys.items()), default=0) if n_tokens is None else n_tokens
        )
        return prefix

    def keys(self, block_size: int) -> array[int]:
        """Keys of the full blocks at `block_size`. Cost: O(tokens) once a block size."""
        keys = self._keys.get(block_size)
        if keys is None:
            keys = self._make_keys(self._tokens, block_size, seed=self._seed, parent=self._root)
            self._keys[block_size] = keys
        return keys
