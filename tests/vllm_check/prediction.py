"""Predictions of kvatlas about a server's cache beside the server's own figures, one request at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

import aiohttp

from .client import ask, post
from .errors import CheckError
from .model import MODEL_NAME
from .probe import Probe
from .server import VllmServer
from .traffic import Prompt, Traffic

QUIET_S = 0.15
"""Silence after which a server counts as having published everything: copies to CPU memory end, and are published,
a few scheduler steps after the request, which takes some 20 ms."""
_SETTLE_LIMIT_S = 15.0


class Unknowable(Enum):
    """Reason why no events could have informed kvatlas before this request."""

    RESTART = "first request after a restart"
    RESET = "first request after /reset_prefix_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One request: the expectation of kvatlas, and the engine's figure, in tokens.

    Attributes:
        number: of the request, from 0.
        server: that was asked.
        kind: of prompt.
        salted: whether it had a cache salt.
        n_tokens: of the prompt.
        predicted: cached tokens by kvatlas.
        cached: cached tokens by the engine.
        tiers: gap-free tokens by kvatlas, by tier.
        unknowable: set when events could not have told.
        last_seq: last batch of the server before the request.
    """

    number: int
    server: str
    kind: str
    salted: bool
    n_tokens: int
    predicted: int
    cached: int
    tiers: Mapping[str, int]
    unknowable: Unknowable | None
    last_seq: int | None

    @property
    def exact(self) -> bool:
        """Whether kvatlas expected what the engine found."""
        return self.predicted == self.cached

    @property
    def from_cpu(self) -> bool:
        """Whether the engine found more than kvatlas knows on the GPU."""
        return self.cached > self.tiers["gpu"]


class Predictor:
    """The sequential part of the check.

    Args:
        session: HTTP client.
        kvatlas: `http://HOST:PORT` of its REST listener.
        servers: each with its probe.
        seed: of the traffic and of which server it goes to.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        kvatlas: str,
        servers: Sequence[tuple[VllmServer, Probe]],
        *,
        seed: int,
    ) -> None:
        self._session, self._kvatlas, self._servers = session, kvatlas, servers
        self._rng, self._traffic = Random(seed), Traffic(seed)
        self._unknowable: dict[str, Unknowable] = {}
        self.predictions: list[Prediction] = []

    async def run(self, n_requests: int) -> None:
        """Send `n_requests` more, each to a random server.

        Raises:
            CheckError: kvatlas does not catch up with a server.
        """
        for _ in range(n_requests):
            server, probe = self._rng.choice(self._servers)
            prompt = self._traffic.next()
            last_seq = probe.last_seq
            predicted, tiers = await self._predict(server, prompt)
            reply = await ask(self._session, server.url, prompt)
            self.predictions.append(
                Prediction(
                    number=len(self.predictions),
                    server=server.name,
                    kind=prompt.kind,
                    salted=prompt.salt is not None,
                    n_tokens=reply.n_prompt_tokens,
                    predicted=predicted,
                    cached=reply.cached,
                    tiers=tiers,
                    unknowable=self._unknowable.pop(server.name, None),
                    last_seq=last_seq,
                )
            )
            self._traffic.answered(prompt, reply.tokens, reply.text)
            await self._settle(server, probe)

    async def restart(self, server: VllmServer) -> None:
        """Replace the server's process by a new one, which starts with empty caches."""
        await server.stop()
        await server.start()
        self._unknowable[server.name] = Unknowable.RESTART

    async def reset(self, server: VllmServer) -> None:
        """Empty the server's GPU pool, which it publishes only with its next request."""
        async with self._session.post(f"{server.url}/reset_prefix_cache") as answer:
            answer.raise_for_status()
        self._unknowable[server.name] = Unknowable.RESET

    async def _predict(self, server: VllmServer, prompt: Prompt) -> tuple[int, Mapping[str, int]]:
        """Return the usable tokens, and the gap-free ones by tier."""
        body: dict[str, Any] = {"model": MODEL_NAME, "cache_salt": prompt.salt}
        if prompt.tokens is not None:
            found = await post(self._session, f"{self._kvatlas}/query", body | {"token_ids": prompt.tokens})
            instance = found["default"][server.name]
            return instance["longest_matched"], {"gpu": instance["GPU"], "cpu": instance["CPU"]}
        scored = await post(self._session, f"{self._kvatlas}/v1/score", body | {"messages": prompt.messages})
        endpoint = next(row for row in scored["endpoints"] if row["name"] == server.name)
        if endpoint["prefix"] is None:  # nothing has been heard of the server yet
            return 0, {"gpu": 0, "cpu": 0}
        return endpoint["prefix"]["usableTokens"], endpoint["prefix"]["tierTokens"]

    async def _settle(self, server: VllmServer, probe: Probe) -> None:
        """Wait until the server is quiet and kvatlas has applied its last batch."""
        asked_at = time.monotonic()
        applied: int | None = None
        try:
            async with asyncio.timeout(_SETTLE_LIMIT_S):
                while True:
                    quiet_s = time.monotonic() - max(probe.last_at, asked_at)
                    if quiet_s < QUIET_S:
                        await asyncio.sleep(QUIET_S - quiet_s)
                        continue
                    applied = await self._last_seq(server)
                    if applied == probe.last_seq:
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise CheckError(
                f"{server.name} has published batch {probe.last_seq}, and after {_SETTLE_LIMIT_S:.0f} s kvatlas is at {applied}"
            ) from None

    async def _last_seq(self, server: VllmServer) -> int | None:
        async with self._session.get(f"{self._kvatlas}/v1/endpoints/{server.name}") as answer:
            answer.raise_for_status()
            seq: int | None = (await answer.json())["publishers"][0]["lastSeq"]
        return seq
