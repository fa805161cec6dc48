"""Chats that arrive at random times, whatever the servers do, and how they went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import aiohttp
import msgspec

from ..errors import SimError
from ..words import prose
from ..workload import Turn, send_turn

REQUEST_LIMIT_S = 300.0
LAG_PROBE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLoad:
    """Chats with shared system prompts; equal loads give equal chats at equal times.

    Attributes:
        rate: chats that begin in a simulated second, on average; arrivals are a Poisson process.
        seconds: simulated time in which chats begin.
        groups: number of distinct system prompts.
        turns: requests of a chat; each repeats all previous messages.
        system_words: length of a system prompt.
        user_words: length of a user's message.
        reply_tokens: length of a reply.
        think_s: mean simulated time between a reply and the next message, exponentially distributed.
        seed: of texts and times.
    """

    rate: float
    seconds: float
    groups: int = 24
    turns: int = 4
    system_words: int = 5200
    user_words: int = 520
    reply_tokens: int = 48
    think_s: float = 3.0
    seed: int = 1


@dataclass(slots=True)
class Chat:
    """One chat; times are simulated seconds.

    Attributes:
        at_s: when it begins.
        messages: the system prompt, to begin with.
        rng: of its further texts and pauses.
    """

    at_s: float
    messages: list[dict[str, str]]
    rng: Random


@dataclass(slots=True)
class Played:
    """A load that was played; times of turns are real seconds.

    Attributes:
        turns: successful requests, in the order of their ends.
        errors: one line per failed request, which ends its chat.
        lags_s: how much too late this process's event loop was, each 20 ms.
    """

    turns: list[Turn] = field(default_factory=list[Turn])
    errors: list[str] = field(default_factory=list[str])
    lags_s: list[float] = field(default_factory=list[float])


def chats(load: ChatLoad) -> Iterator[Chat]:
    """Yield the chats in the order of their beginnings."""
    rng = Random(load.seed)
    prompts = [prose(Random(rng.random()), load.system_words) for _ in range(load.groups)]
    at_s = rng.expovariate(load.rate)
    while at_s < load.seconds:
        system = {"role": "system", "content": rng.choice(prompts)}
        yield Chat(at_s, [system], Random(rng.random()))
        at_s += rng.expovariate(load.rate)


async def play(
    base_url: str,
    model: str,
    load: ChatLoad,
    *,
    time_scale: float = 1.0,
    progress: Callable[[], None] = lambda: None,
) -> Played:
    """Play the load against a gateway, until all chats have ended.

    Args:
        base_url: `http://HOST:PORT`.
        model: name to request.
        load: the chats.
        time_scale: real seconds per simulated second.
        progress: called after each request.
    """
    played, loop = Played(), asyncio.get_running_loop()
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        begin = loop.time()

        async def play_chat(chat: Chat) -> None:
            for number in range(load.turns):
                if number:
                    await asyncio.sleep(chat.rng.expovariate(1 / load.think_s) * time_scale)
                content = prose(chat.rng, load.user_words)
                chat.messages.append({"role": "user", "content": content})
                try:
                    turn, reply = await send_turn(
                        session, base_url, model, chat.messages, reply_tokens=load.reply_tokens
                    )
                except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, SimError) as error:
                    played.errors.append(f"{type(error).__name__}: {error}")
                    return
                played.turns.append(turn)
                chat.messages.append({"role": "assistant", "content": reply})
                progress()

        probe = asyncio.create_task(_probe(played.lags_s))
        try:
            async with asyncio.TaskGroup() as players:
                for chat in chats(load):
                    await asyncio.sleep(begin + chat.at_s * time_scale - loop.time())
                    players.create_task(play_chat(chat))
        finally:
            probe.cancel()
    return played


async def _probe(lags_s: list[float]) -> None:
    """Measure how late the event loop is, for as long as it runs."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_PROBE_S
        await asyncio.sleep(LAG_PROBE_S)
        lags_s.append(loop.time() - due)
