"""The concurrent part: what kvatlas expects of caches while many requests run at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from .client import ask
from .gateway import envoy_for, kvatlas_for
from .server import ServerOptions, VllmServer
from .traffic import Traffic

LEVELS = (4, 16, 32)
"""Requests at once."""

CONCURRENT = (
    ServerOptions(gpu_blocks=400, cpu_blocks=500, n_running=16),
    ServerOptions(gpu_blocks=400, cpu_blocks=500, n_running=16, chunk_blocks=2, self_describing=False),
)
"""Room for 16 of the longest prompts at once, and little more, so that both tiers evict."""

_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """kvatlas' audit of one request: what it expected at its pick, and the engine's figure, in tokens.

    Attributes:
        level: requests at once.
        server: that was picked.
        expected: cached tokens by kvatlas, those included that requests under way were expected to leave.
        cached: cached tokens by the engine.
        predicted: expected tokens that no event had confirmed yet.
        verdict: of the audit.
    """

    level: int
    server: str
    expected: int
    cached: int
    predicted: int
    verdict: str

    @property
    def exact(self) -> bool:
        """Whether kvatlas expected what the engine found."""
        return self.expected == self.cached


async def ask_at_once(
    servers: Sequence[VllmServer],
    folder: Path,
    *,
    n_requests: int,
    seed: int,
    progress: Callable[[str], None],
) -> list[Audit]:
    """Send `n_requests` at each level through Envoy and kvatlas, on running servers.

    Raises:
        CheckError: a request failed.
    """
    audits: list[Audit] = []
    traffic = Traffic(seed)
    async with AsyncExitStack() as stack:
        kvatlas = await stack.enter_async_context(kvatlas_for(servers, folder))
        envoy = await stack.enter_async_context(envoy_for(servers, kvatlas))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=max(LEVELS)))
        )
        seen: set[str] = set()
        for level in LEVELS:
            await _send(session, envoy.gateway_url, traffic, n_requests=n_requests, level=level)
            found = await _audits(session, kvatlas.url, level, seen)
            progress(f"{level} at once: {sum(each.exact for each in found)} of {len(found)} exact")
            audits += found
        kvatlas.process.check()
    return audits


async def _send(
    session: aiohttp.ClientSession, gateway: str, traffic: Traffic, *, n_requests: int, level: int
) -> None:
    left = iter(range(n_requests))

    async def client() -> None:
        for _ in left:
            prompt = traffic.next()
            reply = await ask(session, gateway, prompt)
            traffic.answered(prompt, reply.tokens, reply.text)

    async with asyncio.TaskGroup() as clients:
        for _ in range(level):
            clients.create_task(client())


async def _audits(session: aiohttp.ClientSession, kvatlas: str, level: int, seen: set[str]) -> list[Audit]:
    """Return the audits of the requests that are not in `seen`, oldest first, and add them to it."""
    listed = (await _get(session, f"{kvatlas}/v1/decisions?limit={_PAGE}"))["decisions"]
    new = [row["requestId"] for row in reversed(listed) if row["requestId"] not in seen]
    seen.update(new)
    decisions = [await _get(session, f"{kvatlas}/v1/decisions/{request}") for request in new]
    return [_audit(decision, level) for decision in decisions if decision["audited"] is not None]


def _audit(decision: dict[str, Any], level: int) -> Audit:
    audit, picked = decision["audited"], decision["picked"][0]
    prefix = next(row["prefix"] for row in decision["endpoints"] if row["name"] == picked)
    expected = sum(audit["expectedTokens"].values())
    return Audit(
        level=level,
        server=picked,
        expected=expected,
        cached=expected - audit["errorTokens"],
        predicted=prefix["predictedTokens"],
        verdict=audit["verdict"],
    )


def verdicts(audits: Sequence[Audit]) -> Counter[str]:
    """Return the verdicts of the requests that were not exact."""
    return Counter(each.verdict for each in audits if not each.exact)


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as answer:
        answer.raise_for_status()
        found: dict[str, Any] = await answer.json()
    return found
