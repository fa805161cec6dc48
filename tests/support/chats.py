"""Chats that are sent to a gateway at a rate, and what their answers said of the cache.

KVATLAS_REPLICA_RATE sets the rate in requests per second, KVATLAS_REPLICA_PHASE_S the seconds of each phase. By default they are
small for the machine that runs the gateway and all behind it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kvatlas.sim.demo_model import MODEL_NAME

RATE = float(os.environ.get("KVATLAS_REPLICA_RATE", "40"))
PHASE_S = float(os.environ.get("KVATLAS_REPLICA_PHASE_S", "1.5"))
N_CHATS, SHARED_TOKENS, TAIL_TOKENS = 40, 256, 16


@dataclass
class Tally:
    """Responses of one phase."""

    statuses: list[int] = field(default_factory=list[int])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    """From the first request to the last response."""
    undecided: int = 0
    """Requests that the gateway sent anywhere, because no picker decided."""

    @property
    def failed(self) -> int:
        return sum(status != 200 for status in self.statuses)

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens


async def send_chats(client: aiohttp.ClientSession, rng: random.Random, seconds: float) -> Tally:
    """Send chats at the rate for so long."""
    tally, began = Tally(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * RATE)):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            tasks.create_task(_ask(client, rng, tally))
    tally.seconds = time.monotonic() - began
    return tally


async def _ask(client: aiohttp.ClientSession, rng: random.Random, tally: Tally) -> None:
    chat = rng.randrange(N_CHATS)
    shared = [chat * 7 % 250 + 1, *(n * (chat + 3) % 250 + 1 for n in range(SHARED_TOKENS - 1))]
    prompt = [*shared, *(rng.randrange(1, 250) for _ in range(TAIL_TOKENS))]
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 2}
    try:
        async with client.post("/v1/completions", json=body) as answer:
            tally.statuses.append(answer.status)
            found: dict[str, Any] = await answer.json() if answer.status == 200 else {}
    except aiohttp.ClientError:
        tally.statuses.append(0)
        return
    usage: dict[str, Any] = found.get("usage") or {}
    tally.prompt_tokens += usage.get("prompt_tokens", 0)
    details: dict[str, int] = usage.get("prompt_tokens_details") or {}
    tally.cached_tokens += details.get("cached_tokens", 0)
