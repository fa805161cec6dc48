"""One request in a simulated engine, and what it gets from a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .block_cache import Lease
from .host_link import Copy
from .sequence import BlockSequence, Lora, TokenSequence


@dataclass(slots=True, eq=False)
class Request:
    """One request in the engine.

    Attributes:
        request_id: unique in the engine.
        prompt: token ids, at least one.
        output: the token ids the engine will generate, at least one.
        lora: adapter, or None.
        salt: `cache_salt`, or None.
        sequence: prompt and generated tokens; None until the engine looks at the request. One that is given stands for
            the prompt's tokens, and then `prompt` and `output` need only have the right length.
        cached_tokens: prompt tokens reused, all tiers; None until admitted.
        gpu_tokens: those of them found on the GPU.
        fetched_tokens: tokens read from the storage tier for it.
        n_fetches: how often that was done.
        fetched_at: when the last of these is, or was, done.
        n_generated: tokens generated so far.
        lease: its hold on the cache; None while it has none.
        load: the copy from the CPU tier that it waits for; None when it waits for none.
        deferred: whether it waits for another's load or store, or for a fetch.
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
    load: Copy | None = None
    deferred: bool = False

    @property
    def n_left(self) -> int:
        """Tokens still to generate."""
        return len(self.output) - self.n_generated

    def look_at(self, block_size: int) -> BlockSequence:
        """Its sequence, made when first needed."""
        if self.sequence is None:
            self.sequence = TokenSequence(self.prompt, block_size=block_size, lora=self.lora, salt=self.salt)
        return self.sequence

    def admitted(self) -> tuple[BlockSequence, Lease]:
        """Sequence and lease of a request that has them.

        Raises:
            RuntimeError: it was never admitted.
        """
        if self.sequence is None or self.lease is None:
            raise RuntimeError(f"request {self.request_id} was never admitted")
        return self.sequence, self.lease


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens of one request, one a step; `finished` with its last."""

    request: Request
    tokens: Sequence[int]
    finished: bool
