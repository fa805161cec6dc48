"""Look-up of prompts in the key directory of LMCache's coordinator, as a source for tiers that all servers share.

A prompt is asked for in the background after its request was routed, so that the requests after it know. Decisions wait for nothing.
Source: LMCache, MP coordinator, `POST /directory/lookup`.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from prometheus_client.metrics_core import Metric
from xxhash import xxh3_64_intdigest

from ...configs.lmcache import LmcacheDirectoryConfig
from ...events.model import BlockStored, EngineHash
from ...events.tasks import keep
from ...indexer.prefix import Prefix
from ..families import counter
from ..fleet import Fleet
from ..rank import Rank
from .batches import MAX_CHUNK_TOKENS, CacheBatch, ChunkKey, LmcacheError
from .publishers import is_free

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

MAX_WAITING = 64
"""Prompts that wait to be asked for; further ones are not asked."""

MAX_ASKED = 4096
"""Prompts whose last question is remembered."""

MAX_ANSWER_BYTES = 16 * 2**20
"""Longest answer; it has the tokens of each chunk once per rank."""

MAX_TOKENS = 262_144
"""Tokens of a prompt that are asked for."""

MAX_RESULTS = 65_536
"""Keys of one answer: chunks times ranks."""

_Text = Annotated[str, Meta(max_length=256)]


class Placement(msgspec.Struct, frozen=True):
    """One place that has a part of a chunk."""

    tier: _Text
    backend: _Text = ""
    shared: bool = False


class Result(msgspec.Struct, frozen=True):
    """One part of a chunk on one rank, and the places that have it."""

    key: ChunkKey
    placements: Annotated[list[Placement], Meta(max_length=1024)] = []
    token_ids: Annotated[list[int], Meta(max_length=MAX_CHUNK_TOKENS)] = []


class Answer(msgspec.Struct, frozen=True):
    """Answer of the directory: the results of each chunk, rank by rank."""

    chunks: Annotated[int, Meta(ge=0, le=MAX_RESULTS)]
    results: Annotated[list[Result], Meta(max_length=MAX_RESULTS)] = []


_decode = msgspec.json.Decoder(Answer).decode


def read_answer(body: bytes) -> Answer:
    """Decode an answer.

    Raises:
        LmcacheError: it is no answer of a directory.
    """
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LmcacheError(f"answer of the directory is unreadable: {error}") from None


def events_of_answer(answer: Answer, tokens: array[int], chunk_tokens: int) -> Iterator[BlockStored]:
    """Yield stores of the prompt's leading chunks that storage for all servers has whole."""
    n_ranks, rest = divmod(len(answer.results), answer.chunks or 1)
    if not answer.chunks or not n_ranks or rest or answer.chunks * chunk_tokens > len(tokens):
        return
    parent: EngineHash | None = None
    for number in range(answer.chunks):
        parts = answer.results[number * n_ranks : (number + 1) * n_ranks]
        engine_hash = parts[0].key.engine_hash
        backends = [{p.backend for p in part.placements if p.shared and p.tier == "l2"} for part in parts]
        common = set[str].intersection(*backends)
        if not common:
            return
        medium = CacheBatch("d", 0, 1, "store", "l2", min(common)).medium
        chunk = tokens[number * chunk_tokens : (number + 1) * chunk_tokens]
        yield BlockStored((engine_hash,), parent, chunk, chunk_tokens, medium)
        parent = engine_hash


class Directory:
    """Asks a directory for prompts.

    Args:
        fleet: gets what the directory knows.
        config: where the directory is.
        model: name of the model in its keys.

    Attributes:
        counts: questions and chunks so far, by what became of them.
    """

    def __init__(self, fleet: Fleet, config: LmcacheDirectoryConfig, model: str) -> None:
        self._fleet, self._config, self._model = fleet, config, model
        self._waiting: deque[array[int]] = deque()
        self._asked: OrderedDict[int, float] = OrderedDict()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Start to ask."""
        self._task = keep(self._run, "LMCache directory", needed=False)

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def routed(self, prefix: Prefix | None, *, now: float) -> None:
        """Ask for a prompt soon, unless it was asked for lately; `now` in monotonic seconds. Cost: a hash of its last chunk."""
        size = self._config.chunk_tokens
        tokens = prefix.plain_tokens if prefix is not None else None
        if tokens is None or len(tokens) < size:
            return
        end = min(len(tokens), MAX_TOKENS) // size * size
        name = xxh3_64_intdigest(memoryview(tokens)[max(0, end - size) : end].cast("B"), end)
        if now - self._asked.get(name, -1e9) < self._config.ttl:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.counts["skipped"] += 1
            return
        self._asked[name] = now
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        self._waiting.append(tokens[:end])
        self._wake.set()

    def families(self) -> Iterator[Metric]:
        """Yield the counts as metrics."""
        found = counter(
            "lmcache_lookups", "Prompts and chunks asked of a directory, by what became of them.", "outcome"
        )
        for outcome, count in sorted(self.counts.items()):
            found.add_metric([outcome], count)
        yield found

    async def _run(self) -> None:
        import aiohttp  # noqa: PLC0415 - 0.1 s, only where a directory is configured

        timeout = aiohttp.ClientTimeout(self._config.timeout)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._ask(session, self._waiting.popleft())

    async def _ask(self, session: aiohttp.ClientSession, tokens: array[int]) -> None:
        body = {
            "model_name": self._model,
            "world_size": self._config.world_size,
            "token_ids": tokens.tolist(),
            "cache_salt": "",
        }
        import aiohttp  # noqa: PLC0415 - see `_run`

        try:
            answer = read_answer(await self._fetch(session, msgspec.json.encode(body)))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LmcacheError) as error:
            self.counts["failed"] += 1
            if not self._is_failing:
                log.warning("the directory at %s does not answer: %s", self._config.url, error)
            self._is_failing = True
            return
        self._is_failing = False
        self.counts["asked"] += 1
        rank = self._rank()
        if rank is None:
            return
        for event in events_of_answer(answer, tokens, self._config.chunk_tokens):
            if not self._fleet.atlas.tiers.specs[self._fleet.atlas.tiers.of(event.medium)].shared:
                self.counts["not_shared"] += 1
                return
            if not await is_free(rank, self._fleet):
                return
            rank.ledger.apply(event)
            self.counts["chunks"] += 1

    async def _fetch(self, session: aiohttp.ClientSession, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        url = f"{self._config.url.rstrip('/')}/directory/lookup"
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise LmcacheError(f"HTTP status {response.status}")
            found = bytearray()
            async for piece in response.content.iter_any():
                found += piece
                if len(found) > MAX_ANSWER_BYTES:
                    raise LmcacheError(f"answer is longer than {MAX_ANSWER_BYTES} bytes")
            return bytes(found)

    def _rank(self) -> Rank | None:
        """Return a rank of the configured fleet, through which its shared tiers are filled; None while no block size is known."""
        ranks = (rank for endpoint in self._fleet if not endpoint.instance.space for rank in endpoint.ranks)
        return next((rank for rank in ranks if rank.ledger.block_size is not None), None)
