"""Workload of multi-turn chats with shared system prompts, run against an OpenAI endpoint, and its results."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from .errors import SimError
from .http_api import CHAT_PATH, SERVED_BY
from .words import prose

CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"
REQUEST_LIMIT_S = 60.0
_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Specification of a workload; equal specifications give equal conversations.

    Attributes:
        groups: number of distinct system prompts.
        conversations: conversations per group.
        turns: requests per conversation; each repeats all previous messages.
        system_words: length of a system prompt.
        user_words: length of a user's message.
        reply_tokens: length of a reply.
        concurrency: number of concurrent requests; the next starts when one ends.
        seed: of the texts and their order.
        cache_salt: sent with every request, so that workloads on the same servers do not share blocks; empty for none.
    """

    groups: int
    conversations: int
    turns: int
    system_words: int
    user_words: int
    reply_tokens: int
    concurrency: int
    seed: int = 0
    cache_salt: str = ""

    @property
    def n_requests(self) -> int:
        """Total number of requests."""
        return self.groups * self.conversations * self.turns


@dataclass(frozen=True, slots=True)
class Turn:
    """One successful request; times are seconds since it was sent."""

    server: str
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """All turns, in the order of their ends, and one line per failed turn."""

    turns: Sequence[Turn]
    errors: Sequence[str] = ()

    @property
    def prompt_tokens(self) -> int:
        """Total prompt tokens sent."""
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def hit_rate(self) -> float:
        """Fraction of the prompt tokens that the servers had cached in any tier, 0 to 1."""
        return sum(turn.cached_tokens for turn in self.turns) / max(1, self.prompt_tokens)

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to the first token; 0 if no turn succeeded."""
        return sum(turn.ttft_s for turn in self.turns) / max(1, len(self.turns))

    @property
    def p90_ttft_s(self) -> float:
        """90th percentile of the time to the first token; 0 if no turn succeeded."""
        times = sorted(turn.ttft_s for turn in self.turns)
        return times[-(-len(times) * 9 // 10) - 1] if times else 0.0

    @property
    def requests_by_server(self) -> Counter[str]:
        """Number of turns by server name."""
        return Counter(turn.server for turn in self.turns)


@dataclass(frozen=True, slots=True)
class TierTokens:
    """Prompt tokens that servers found in each tier since their start."""

    gpu: int = 0
    cpu: int = 0


@dataclass(slots=True)
class _Conversation:
    messages: list[dict[str, str]]
    rng: Random
    turns_left: int


@dataclass(slots=True)
class _WorkloadRun:
    """A running workload."""

    session: aiohttp.ClientSession
    base_url: str
    model: str
    spec: WorkloadSpec
    waiting: deque[_Conversation]
    progress: Callable[[], None]
    turns: list[Turn] = field(default_factory=list[Turn])
    errors: list[str] = field(default_factory=list[str])


async def run_workload(
    base_url: str, model: str, spec: WorkloadSpec, *, progress: Callable[[], None] = lambda: None
) -> WorkloadResult:
    """Run the whole workload against `base_url`.

    Conversations alternate: between two turns of one there is a turn of each other. So the reuse distance is the whole
    workload. A failed request ends its conversation.

    Args:
        base_url: `http://HOST:PORT`.
        model: name to request.
        spec: the workload.
        progress: called after each request.
    """
    connector = aiohttp.TCPConnector(limit=spec.concurrency)
    timeout = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        run = _WorkloadRun(session, base_url, model, spec, deque(_conversations(spec)), progress)
        async with asyncio.TaskGroup() as players:
            for _ in range(spec.concurrency):
                players.create_task(_run_conversations(run))
    return WorkloadResult(run.turns, run.errors)


async def read_tier_tokens(metrics_urls: Iterable[str]) -> TierTokens:
    """Sum the tokens over the servers' `/metrics`.

    Raises:
        aiohttp.ClientError: a server did not respond.
    """
    totals: Counter[str] = Counter()
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for url in metrics_urls:
            async with session.get(url) as response:
                text = await response.text()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == CACHED_BY_SOURCE:
                        totals[sample.labels["source"]] += int(sample.value)
    return TierTokens(gpu=totals["device"], cpu=totals["host"])


def _conversations(spec: WorkloadSpec) -> list[_Conversation]:
    rng = Random(spec.seed)
    conversations: list[_Conversation] = []
    for _ in range(spec.groups):
        system = {"role": "system", "content": prose(rng, spec.system_words)}
        conversations += (
            _Conversation([system], Random(rng.random()), spec.turns) for _ in range(spec.conversations)
        )
    rng.shuffle(conversations)
    return conversations


async def _run_conversations(run: _WorkloadRun) -> None:
    """Take the conversation that waited longest, send its next turn, and put it back, until all have ended."""
    while run.waiting:
        conversation = run.waiting.popleft()
        content = prose(conversation.rng, run.spec.user_words)
        conversation.messages.append({"role": "user", "content": content})
        try:
            turn, reply = await send_turn(
                run.session,
                run.base_url,
                run.model,
                conversation.messages,
                reply_tokens=run.spec.reply_tokens,
                cache_salt=run.spec.cache_salt,
            )
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, SimError) as error:
            run.errors.append(f"{type(error).__name__}: {error}")
        else:
            run.turns.append(turn)
            conversation.messages.append({"role": "assistant", "content": reply})
            conversation.turns_left -= 1
            if conversation.turns_left:
                run.waiting.append(conversation)
        run.progress()


async def send_turn(
    session: aiohttp.ClientSession,
    base_url: str,
    model: str,
    messages: list[dict[str, str]],
    *,
    reply_tokens: int,
    cache_salt: str = "",
) -> tuple[Turn, str]:
    """Send a chat; return its figures and the reply.

    Raises:
        SimError: an error status, or a response that broke off.
        aiohttp.ClientError: no response.
        TimeoutError: no response in the session's time.
    """
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": reply_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if cache_salt:
        body["cache_salt"] = cache_salt
    loop = asyncio.get_running_loop()
    started = loop.time()
    ttft_s: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] | None = None
    async with session.post(base_url + CHAT_PATH, json=body) as response:
        if response.status != 200:
            text = await response.text()
            raise SimError(f"status {response.status}: {text[:_ERROR_CHARS]}")
        async for chunk in _chunks(response.content):
            usage = chunk.get("usage") or usage
            content = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if content and ttft_s is None:
                ttft_s = loop.time() - started
            pieces.append(content)
    if usage is None or ttft_s is None:
        raise SimError("the response ended without tokens or without usage")
    turn = Turn(
        server=response.headers.get(SERVED_BY, ""),
        ttft_s=ttft_s,
        total_s=loop.time() - started,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=_cached_tokens(usage),
    )
    return turn, "".join(pieces)


def _cached_tokens(usage: dict[str, Any]) -> int:
    details: dict[str, int] | None = usage["prompt_tokens_details"]
    return details.get("cached_tokens", 0) if details else 0


async def _chunks(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a server-sent event stream, up to `[DONE]`."""
    async for line in stream:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        if data:
            yield msgspec.json.decode(data)
    raise SimError("the stream broke off")
