"""The block keys of one prompt, at any block size, computed once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..events.model import MultimodalKey
from .keys import BlockKey, Namespace, PrefixKeys, prefix_keys, root_key

WORD_BYTES = 4
"""Bytes that count as one token if a prompt is keyed by its bytes: about the length of a token in English text, so that
blocks and capacities keep their meaning."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """One multimodal item of a prompt: the engine's identifier, first token and number of tokens."""

    identifier: str
    offset: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class TextLimits:
    """How much of a prompt that is keyed by its bytes is matched.

    Attributes:
        max_tokens: most tokens, in whole blocks; 0 for `max_blocks`.
        max_blocks: most blocks; 0 for no limit.
    """

    max_tokens: int = 0
    max_blocks: int = 0

    def tokens(self, block_size: int) -> int | None:
        """Return the most tokens at a block size, None for no limit."""
        if self.max_tokens:
            return self.max_tokens // block_size * block_size
        return self.max_blocks * block_size or None


class Prefix:
    """Keys of one prompt's full blocks, by block size.

    Args:
        tokens: token ids as `array('I')`.
        media: multimodal items among them, by offset.
        lora: adapter the prompt is for.
        salt: cache salt of the request.
        more: whether the prompt continues after `tokens`.
        limits: see `TextLimits`; None for a prompt whose last block counts only if it is full.
        namespace: kind of `tokens`; prefixes of two namespaces have no key in common.
        seed: seed of the block keys.
        make_keys: computes block keys.
    """

    def __init__(
        self,
        tokens: array[int],
        *,
        media: Sequence[MediaSpan] = (),
        lora: str | None = None,
        salt: str | None = None,
        more: bool = False,
        limits: TextLimits | None = None,
        namespace: Namespace = Namespace.TOKENS,
        seed: int = 0,
        make_keys: PrefixKeys = prefix_keys,
    ) -> None:
        self.n_tokens = len(tokens) + more
        self._tokens, self._media = tokens, media
        self._root = root_key(lora=lora, salt=salt, seed=seed, namespace=namespace)
        self._seed, self._make_keys, self._limits = seed, make_keys, limits
        self._keys: dict[tuple[int, int], array[int]] = {}

    @classmethod
    def from_keys(cls, keys: Mapping[int, array[int]], *, n_tokens: int | None = None) -> Prefix:
        """Build a prefix from its keys alone; without `n_tokens` the engine may reuse every block."""
        prefix = cls(array("I"))
        prefix._keys.update(((size, 0), each) for size, each in keys.items())
        prefix.n_tokens = (
            max((size * len(k) + 1 for size, k in keys.items()), default=0) if n_tokens is None else n_tokens
        )
        return prefix

    def keys(self, block_size: int, lookahead: int = 0) -> array[int]:
        """Return the keys of the full blocks at `block_size` that have `lookahead` tokens after them.

        Of a text also that of its last block, up to its limits; it has no lookahead.
        Cost: O(tokens), once per block size and lookahead.
        """
        keys = self._keys.get((block_size, lookahead))
        if keys is None:
            if self._limits is None:
                keys = self._full(self._tokens, block_size, lookahead)
            else:
                keys = self._text_keys(block_size, self._limits.tokens(block_size))
            self._keys[block_size, lookahead] = keys
        return keys

    def _text_keys(self, block_size: int, limit: int | None) -> array[int]:
        tokens = self._tokens if limit is None else self._tokens[:limit]
        return self._with_rest(self._full(tokens, block_size), tokens, block_size)

    def _full(self, tokens: array[int], block_size: int, lookahead: int = 0) -> array[int]:
        extras = media_keys(self._media, block_size, lookahead) if self._media else None
        return self._make_keys(
            tokens, block_size, seed=self._seed, parent=self._root, extras=extras, lookahead=lookahead
        )

    @property
    def plain_tokens(self) -> array[int] | None:
        """Token ids of a prompt that is its tokens alone; None with adapter, salt or media, or if they are not known."""
        is_plain = self._root is None and not self._media and self._limits is None
        return self._tokens if is_plain and len(self._tokens) else None

    def covering_keys(self, block_size: int) -> array[int]:
        """Return `keys`, plus one key for the tokens after the last full block if there are any. Cost: as `keys`."""
        if self._limits is not None:
            return self._text_keys(block_size, None)
        return self._with_rest(self.keys(block_size), self._tokens, block_size)

    def _with_rest(self, keys: array[int], tokens: array[int], block_size: int) -> array[int]:
        rest = tokens[len(keys) * block_size :]
        if not rest:
            return keys
        touching = media_keys(self._media, block_size).get(len(keys))
        return keys + self._make_keys(
            rest,
            len(rest),
            seed=self._seed,
            parent=BlockKey(keys[-1]) if keys else self._root,
            extras={0: touching} if touching else None,
        )


def media_keys(
    media: Sequence[MediaSpan], block_size: int, lookahead: int = 0
) -> dict[int, list[MultimodalKey]]:
    """Return the items that touch each block or its lookahead, in the form of an engine's store event.

    Args:
        media: items by offset.
        block_size: tokens per block.
        lookahead: tokens after a block that belong to its key.
    Cost: O(blocks that the items touch).
    Source: vLLM 0.33 kv_cache_utils, the multimodal part of a block's extra keys.
    """
    keys: dict[int, list[MultimodalKey]] = {}
    for item in media:
        end = item.offset + item.n_tokens
        first = max(item.offset - lookahead, 0) // block_size
        for block in range(first, -(-end // block_size)):
            keys.setdefault(block, []).append(
                MultimodalKey(item.identifier, item.offset - block * block_size)
            )
    return keys


def words_of(text: bytes) -> array[int]:
    """Return `text` as numbers of `WORD_BYTES` bytes, the last one filled up with zeros."""
    return array("I", text + bytes(-len(text) % WORD_BYTES))
