"""A request in a simulated engine, and the tokens that a step generates for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .block_cache import Lease
from .sequence import BlockSequence, Lora, TokenSequence


class Arrival(Protocol):
    """KV state on its way to the GPU: from the CPU tier, or from another server."""

    @property
    def is_done(self) -> bool:
        """Whether it has arrived."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether it will never arrive."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """KV state of a prompt that another engine keeps for this request.

    Attributes:
        engine_id: of the engine that computed it.
        request_id: in that engine.
        n_blocks: blocks that it keeps, the prompt's last one included.
    """

    engine_id: str
    request_id: str
    n_blocks: int


@dataclass(slots=True, eq=False)
class Request:
    """One request in the engine.

    Attributes:
        request_id: unique in the engine.
        prompt: token ids, at least one.
        output: the token ids the engine will generate, at least one.
        lora: adapter, or None.
        salt: `cache_salt`, or None.
        sequence: prompt and generated tokens; None until `block_sequence` creates it. If it is given, `prompt` and `output`
            only need the right length.
        cached_tokens: reused prompt tokens of all tiers; None until admitted.
        gpu_tokens: those of them found on the GPU.
        fetched_tokens: tokens read from the storage tier for it.
        n_fetches: number of these reads.
        fetched_at: time at which the last of them completes.
        n_generated: tokens generated so far.
        lease: its blocks in the cache; None if it has none.
        load: KV state that it waits for, from the CPU tier or another server; None if there is none.
        keeps_kv: whether its KV state is kept at its end, until another engine has pulled it.
        kept_blocks: numbers of the blocks kept in this way.
        remote: KV state to pull, instead of computing the prompt; None once the transfer has begun, or without one.
        encode_s: seconds for encoding its media, added to its first step.
        pulled_tokens: prompt tokens whose KV state came from another server.
        deferred: whether it waits for another request's load or store, or for a fetch.
    """

    request_id: str
    prompt: Sequence[int]
    output: Sequence[int]
    lora: Lora | None = None
    salt: str | None = None
    sequence: BlockSequence | None = None
    cached_tokens: int | None = None
    gpu_tokens: int = 0
    fetched_tokens: int = 0
    n_fetches: int = 0
    fetched_at: float = 0.0
    n_generated: int = 0
    lease: Lease | None = None
    load: Arrival | None = None
    deferred: bool = False
    keeps_kv: bool = False
    kept_blocks: tuple[int, ...] = ()
    remote: RemoteKv | None = None
    encode_s: float = 0.0
    pulled_tokens: int = 0

    @property
    def n_left(self) -> int:
        """Tokens still to generate."""
        return len(self.output) - self.n_generated

    def block_sequence(self, block_size: int) -> BlockSequence:
        """Return its sequence, which the first call creates."""
        if self.sequence is None:
            self.sequence = TokenSequence(self.prompt, block_size=block_size, lora=self.lora, salt=self.salt)
        return self.sequence

    def admitted(self) -> tuple[BlockSequence, Lease]:
        """Return sequence and lease of an admitted request.

        Raises:
            RuntimeError: it was never admitted.
        """
        if self.sequence is None or self.lease is None:
            raise RuntimeError(f"request {self.request_id} was never admitted")
        return self.sequence, self.lease


@dataclass(frozen=True, slots=True)
class Generated:
    """Generated tokens of one request, one per step; `finished` with the last one, or if it failed, without tokens."""

    request: Request
    tokens: Sequence[int]
    finished: bool
    has_failed: bool = False
