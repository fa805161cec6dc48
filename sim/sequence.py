"""Token sequences and the engine hashes of their full blocks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import msgspec

from ..events.model import EngineHash

BlockTokens = tuple[int, ...] | msgspec.Raw
"""Token ids of consecutive blocks, or the same encoded as a msgpack array."""


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter: its name in requests, and the engine's number for it, from 1."""

    name: str
    number: int


class BlockSequence(Protocol):
    """A prompt and its generated tokens, as the caches use it."""

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def lora(self) -> Lora | None:
        """Adapter, or None for the base model."""
        ...

    @property
    def hashes(self) -> Sequence[EngineHash]:
        """Engine hashes of the full blocks."""
        ...

    def __len__(self) -> int: ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Add generated tokens."""
        ...

    def block_tokens(self, first: int, end: int) -> BlockTokens:
        """Return the token ids of blocks `first` up to, but not including, `end`."""
        ...

    def parent(self, block: int) -> EngineHash | None:
        """Return the hash of the block before `block`; None for the first block."""
        ...

    def extra_keys(self, block: int) -> tuple[str, ...] | None:
        """Return the further hash inputs of `block`, as in its events."""
        ...


def block_hash(
    parent: EngineHash | None, tokens: array[int], *, lora: Lora | None = None, salt: str | None = None
) -> EngineHash:
    """Compute the engine hash of one block: 64 bits over the parent's hash, the tokens, the adapter and the salt.

    The hashes are uniform over u64, as in vLLM, so about half of them exceed 2**63. The same content has the same hash on all
    servers and after a restart, as in vLLM >= 0.29.
    """
    digest = blake2b(digest_size=8)
    digest.update(b"root" if parent is None else parent.to_bytes(8, "big"))
    digest.update(tokens.tobytes())
    for tag, value in ((b"lora", None if lora is None else lora.name), (b"salt", salt)):
        if value is not None:
            encoded = value.encode()
            digest.update(tag + len(encoded).to_bytes(4, "big") + encoded)
    return EngineHash(int.from_bytes(digest.digest(), "big"))


class TokenSequence:
    """`BlockSequence` that stores the token ids; the hashes of full blocks are always current.

    Args:
        prompt: token ids, at least one.
        block_size: tokens per block.
        lora: adapter, or None for the base model.
        salt: `cache_salt` of the request, or None.
    """

    def __init__(
        self, prompt: Sequence[int], *, block_size: int, lora: Lora | None = None, salt: str | None = None
    ) -> None:
        self.tokens = array("I", prompt)
        self.n_prompt = len(prompt)
        self.lora = lora
        self.salt = salt
        self.hashes: list[EngineHash] = []
        self._block_size = block_size
        self._hash_full_blocks()

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add generated tokens."""
        self.tokens.extend(tokens)
        self._hash_full_blocks()

    def block_tokens(self, first: int, end: int) -> tuple[int, ...]:
        """Return the token ids of blocks `first` up to, but not including, `end`."""
        return tuple(self.tokens[first * self._block_size : end * self._block_size])

    def parent(self, block: int) -> EngineHash | None:
        """Return the hash of the block before `block`; None for the first block."""
        return self.hashes[block - 1] if block else None

    def extra_keys(self, block: int) -> tuple[str, ...] | None:
        """Return the further hash inputs of `block`: the adapter for all blocks, the salt for block 0."""
        lora = (self.lora.name,) if self.lora is not None else ()
        salt = (self.salt,) if self.salt is not None and block == 0 else ()
        return lora + salt or None

    def _hash_full_blocks(self) -> None:
        for block in range(len(self.hashes), len(self.tokens) // self._block_size):
            tokens = self.tokens[block * self._block_size : (block + 1) * self._block_size]
            salt = None if block else self.salt
            self.hashes.append(block_hash(self.parent(block), tokens, lora=self.lora, salt=salt))
