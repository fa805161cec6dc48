"""Multi-turn chat with shared system prompts, played against an OpenAI endpoint, and what came of it."""

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
    """What is played; equal specs play equal conversations.

    Attributes:
        groups: distinct system prompts.
        conversations: conversations a group.
        turns: requests a conversation; each repeats all that was said before.
        system_words: length of a system prompt.
        user_words: length of a user's message.
        reply_tokens: length of a reply.
        concurrency: requests under way at once; the next starts when one ends.
        seed: of the texts and their order.
    """

    groups: int
    conversations: int
    turns: int
    system_words: int
    user_words: int
    reply_tokens: int
    concurrency: int
    seed: int = 0

    @property
    def n_requests(self) -> int:
        """Requests in all."""
        return self.groups * self.conversations * self.turns


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered request; times are seconds from its sending."""

    server: str
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """All turns, in the order they ended, and one line for each that failed."""

    turns: Sequence[Turn]
    errors: Sequence[str] = ()

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens sent."""
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def hit_rate(self) -> float:
        """Part of the prompt tokens that the servers had cached, in any tier, 0 to 1."""
        return sum(turn.cached_tokens for turn in self.turns) / max(1, self.prompt_tokens)

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to the first token; 0 when no turn was answered."""
        return sum(turn.ttft_s for turn in self.turns) / max(1, len(self.turns))

    @property
    def p90_ttft_s(self) -> float:
        """Time to the first token that nine of ten turns did not exceed; 0 when no turn was answered."""
        times = sorted(turn.ttft_s for turn in self.turns)
        return times[-(-len(times) * 9 // 10) - 1] if times else 0.0

    @property
    def requests_by_server(self) -> Counter[str]:
        """Server name -> turns it answered."""
        return Counter(turn.server for turn in self.turns)


@dataclass(frozen=True, slots=True)
class TierTokens:
    """Prompt tokens that servers found in each tier since they started."""

    gpu: int = 0
    cpu: int = 0


@dataclass(slots=True)
class _Conversation:
    messages: list[dict[str, str]]
    rng: Random
    turns_left: int


@dataclass(slots=True)
class _Play:
    """A workload under way."""

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
    """Play the whole workload against `base_url`.

    Conversations take turns, so that between two turns of one there is one of every other: the distance over which
    a cache must remember is the whole workload. A failed request ends its conversation.

    Args:
        base_url: `http://HOST:PORT`.
        model: name to ask for.
        spec: what to play.
        progress: called after each request.
    """
    connector = aiohttp.TCPConnector(limit=spec.concurrency)
    timeout = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        play = _Play(session, base_url, model, spec, deque(_conversations(spec)), progress)
        async with asyncio.TaskGroup() as players:
            for _ in range(spec.concurrency):
                players.create_task(_play(play))
    return WorkloadResult(play.turns, play.errors)


async def read_tier_tokens(metrics_urls: Iterable[str]) -> TierTokens:
    """The sum over the servers' `/metrics`.

    Raises:
        aiohttp.ClientError: a server did not answer.
    """
    totals: Counter[str] = Counter()
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for url in metrics_urls:
            async with session.get(url) as answer:
                text = await answer.text()
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


async def _play(play: _Play) -> None:
    """One player: take the conversation that waited longest, let it have a turn, put it back."""
    while play.waiting:
        conversation = play.waiting.popleft()
        content = prose(conversation.rng, play.spec.user_words)
        conversation.messages.append({"role": "user", "content": content})
        try:
            turn, reply = await _ask(play, conversation.messages)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, SimError) as error:
            play.errors.append(f"{type(error).__name__}: {error}")
        else:
            play.turns.append(turn)
            conversation.messages.append({"role": "assistant", "content": reply})
            conversation.turns_left -= 1
            if conversation.turns_left:
                play.waiting.append(conversation)
        play.progress()


async def _ask(play: _Play, messages: list[dict[str, str]]) -> tuple[Turn, str]:
    body = {
        "model": play.model,
        "messages": messages,
        "max_tokens": play.spec.reply_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    loop = asyncio.get_running_loop()
    started = loop.time()
    ttft_s: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] | None = None
    async with play.session.post(play.base_url + CHAT_PATH, json=body) as answer:
        if answer.status != 200:
            text = await answer.text()
            raise SimError(f"status {answer.status}: {text[:_ERROR_CHARS]}")
        async for chunk in _chunks(answer.content):
            usage = chunk.get("usage") or usage
            content = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if content and ttft_s is None:
                ttft_s = loop.time() - started
            pieces.append(content)
    if usage is None or ttft_s is None:
        raise SimError("the answer ended without tokens or without usage")
    turn = Turn(
        server=answer.headers.get(SERVED_BY, ""),
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
    """The JSON objects of a server-sent event stream, up to `[DONE]`."""
    async for line in stream:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        if data:
            yield msgspec.json.decode(data)
    raise SimError("the stream broke off")
