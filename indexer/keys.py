"""Block keys: 64-bit chained ids of a block and everything before it.

    local_i = XXH3-64(token ids of block i as u32 little endian, then its multimodal items; seed)
    key_0   = local_0, or XXH3-64(root || local_0; seed) if the prompt has a root
    key_i   = XXH3-64(key_{i-1} || local_i; seed)

Keys are u64 little endian inside `||`. The root separates whole prompts by LoRA adapter, cache salt, and namespace
(token ids or bytes).
Any client can compute these keys: they are the rolling form of the public indexer contract (Mooncake RFC #1403).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NewType, Protocol

from xxhash import xxh3_64_intdigest

from ..events.model import MultimodalKey
from .errors import KeyInputError

BlockKey = NewType("BlockKey", int)
"""Chained key of one block, 0 .. 2**64 - 1. Comparable only between prefixes of one block size and seed."""

Extras = Mapping[int, Sequence[MultimodalKey]]
"""Block number -> multimodal items that touch it."""


class PrefixKeys(Protocol):
    """A function with the contract of `prefix_keys`."""

    def __call__(
        self,
        tokens: array[int],
        block_size: int,
        *,
        seed: int,
        parent: BlockKey | None = None,
        extras: Extras | None = None,
    ) -> array[int]:
        """Compute the keys of the full blocks of `tokens`."""
        ...


_PAIR = struct.Struct("<QQ").pack
_TOKEN_BYTES = 4


class Namespace(Enum):
    """The input from which a prompt's keys are computed."""

    TOKENS = "tokens"
    BYTES = "bytes"
    """For prompts whose token ids are unknown; no event leads to such a key."""


def root_key(
    *, lora: str | None, salt: str | None, seed: int, namespace: Namespace = Namespace.TOKENS
) -> BlockKey | None:
    """Return the parent of block 0 for adapter `lora` and cache salt `salt`.

    None for token ids with neither. The root of another namespace also contains its name.
    """
    texts = [lora or "", salt or ""]
    if namespace is not Namespace.TOKENS:
        texts.append(namespace.value)
    elif not any(texts):
        return None
    parts = [part for text in texts for part in (_length(text), _bytes(text))]
    return BlockKey(xxh3_64_intdigest(b"".join(parts), seed))


def prefix_keys(
    tokens: array[int],
    block_size: int,
    *,
    seed: int,
    parent: BlockKey | None = None,
    extras: Extras | None = None,
) -> array[int]:
    """Compute the keys of the full blocks of `tokens`.

    Args:
        tokens: token ids as `array('I')`; a last partial block has no key.
        block_size: tokens per block, at least 1.
        seed: XXH3 seed, 0 .. 2**64 - 1.
        parent: key (or root) before the first block; None at the start of a prompt without root.
        extras: multimodal items by block, counted from the first block of `tokens`.
    Returns:
        `array('Q')`, one key per full block, in order.
    Raises:
        KeyInputError: `tokens` is not `array('I')` or `block_size` is below 1.
    Cost: O(n) in tokens, about 0.4 us per block.
    """
    if tokens.typecode != "I" or block_size < 1:
        raise KeyInputError(f"cannot key an array({tokens.typecode!r}) in blocks of {block_size} tokens")
    if sys.byteorder != "little":
        tokens = array("I", tokens)
        tokens.byteswap()
    step = block_size * _TOKEN_BYTES
    digest, pair = xxh3_64_intdigest, _PAIR
    keys = array("Q")
    with memoryview(tokens).cast("B") as raw:
        for block, start in enumerate(range(0, len(raw) - step + 1, step)):
            with raw[start : start + step] as local_bytes:
                items = extras.get(block) if extras else None
                local = digest(local_bytes.tobytes() + _items(items) if items else local_bytes, seed)
            parent = BlockKey(local if parent is None else digest(pair(parent, local), seed))
            keys.append(parent)
    return keys


def chain_keys(local_hashes: Sequence[int], *, seed: int, parent: BlockKey | None = None) -> array[int]:
    """Chain local hashes to keys, for `/query_by_hash` clients that send Dynamo's form. Cost: 0.3 us per hash."""
    keys = array("Q")
    for local in local_hashes:
        parent = BlockKey(local if parent is None else xxh3_64_intdigest(_PAIR(parent, local), seed))
        keys.append(parent)
    return keys


def _items(items: Sequence[MultimodalKey]) -> bytes:
    return b"".join(_length(i.identifier) + _bytes(i.identifier) + struct.pack("<q", i.offset) for i in items)


def _length(text: str) -> bytes:
    return struct.pack("<Q", len(_bytes(text)))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON can contain surrogates, UTF-8 cannot
