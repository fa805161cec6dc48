"""Conversion of a trace's block ids to block hashes, and to token ids that are equal exactly for equal content."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import cast

import msgspec
from xxhash import xxh3_64_intdigest

from ...events.model import EngineHash
from ..errors import SimError
from ..sequence import Lora
from .trace import TraceRequest

_pair = struct.Struct("<QQ").pack
_TOKEN_MASK = (1 << 32) - 1
_ARRAY_HEAD = struct.Struct(">BI").pack
_ARRAY32, _UINT32 = 0xDD, 0xCE
_GENERATED = (1 << 64) - 1
"""Replacement of a block id for content that never recurs."""


def block_hashes(request: TraceRequest, number: int, *, id_tokens: int, block_size: int) -> array[int]:
    """Compute the hashes of the full blocks of prompt and output, chained as in an engine.

    Args:
        request: one request of a trace.
        number: its index there; makes generated blocks without an id unique.
        id_tokens: tokens per block id.
        block_size: tokens per block of the engine; a divisor or a multiple of `id_tokens`.
    Raises:
        SimError: it is neither.
    Cost: O(blocks), about 0.4 us per block.
    """
    if id_tokens % block_size and block_size % id_tokens:
        raise SimError(f"blocks of {block_size} tokens do not fit block ids of {id_tokens} tokens")
    n_blocks = request.n_tokens // block_size
    hashes = array("Q")
    chain = 0
    parts, group = max(1, id_tokens // block_size), max(1, block_size // id_tokens)
    for place in range(0, len(request.ids) - group + 1, group):
        for block_id in request.ids[place : place + group]:
            chain = xxh3_64_intdigest(_pair(chain, block_id))
        if parts == 1:
            hashes.append(chain)
        else:
            hashes.extend(xxh3_64_intdigest(_pair(chain, part)) for part in range(parts))
    knows_output = len(request.ids) > -(-request.n_prompt // id_tokens)
    n_known = len(request.ids) * id_tokens if knows_output else request.n_prompt
    del hashes[min(n_known // block_size, n_blocks) :]
    chain = xxh3_64_intdigest(_pair(_GENERATED, number))
    hashes.extend(xxh3_64_intdigest(_pair(chain, block)) for block in range(len(hashes), n_blocks))
    return hashes


def prompt_tokens(hashes: Sequence[int], *, n_prompt: int, block_size: int) -> array[int]:
    """Make the token ids of a prompt: each block repeats one number derived from its hash, the rest is zeros."""
    n_full = n_prompt // block_size
    tokens = array("I")
    tokens.frombytes(b"".join(struct.pack("=I", key & _TOKEN_MASK) * block_size for key in hashes[:n_full]))
    tokens.frombytes(bytes(4 * (n_prompt - len(tokens))))
    return tokens


class TraceSequence:
    """`BlockSequence` that does not store tokens.

    Args:
        hashes: of the full blocks of prompt and output.
        n_prompt: tokens of the prompt.
        block_size: tokens per block.
    """

    lora: Lora | None = None

    def __init__(self, hashes: array[int], *, n_prompt: int, block_size: int) -> None:
        self.n_prompt = self._n_tokens = n_prompt
        self._all, self._block_size = hashes, block_size
        self.hashes = _engine_hashes(hashes[: n_prompt // block_size])

    def __len__(self) -> int:
        return self._n_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Add generated tokens; only their number matters."""
        self._n_tokens += len(tokens)
        known, n_full = len(self.hashes), self._n_tokens // self._block_size
        if n_full > known:
            self.hashes += _engine_hashes(self._all[known:n_full])

    def block_tokens(self, first: int, end: int) -> msgspec.Raw:
        """See `BlockSequence.block_tokens`."""
        size = self._block_size
        tokens = b"".join(
            struct.pack(">BI", _UINT32, key & _TOKEN_MASK) * size for key in self._all[first:end]
        )
        return msgspec.Raw(_ARRAY_HEAD(_ARRAY32, (end - first) * size) + tokens)

    def parent(self, block: int) -> EngineHash | None:
        """See `BlockSequence.parent`."""
        return self.hashes[block - 1] if block else None

    def extra_keys(self, block: int) -> tuple[str, ...] | None:  # noqa: ARG002 (BlockSequence)
        """See `BlockSequence.extra_keys`."""
        return None


def _engine_hashes(hashes: array[int]) -> list[EngineHash]:
    return cast("list[EngineHash]", hashes.tolist())
