"""A client that gets token ids from engines, over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachetools import TTLCache

from ...configs.secrets import masked_text
from ..chats.conversation import has_media
from ..errors import RemoteError
from ..model import ChatPrompt, NoPrefixReason, NoPrompt, ParsedRequest, TextPrompt, TokenPrompt
from .breaker import CircuitBreaker, Permit
from .wire import RemoteApi, RemoteRequest, read_response, remote_request

if TYPE_CHECKING:
    import aiohttp  # its 11 MB are for processes that send requests

log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 8 * 2**20
"""Largest response that is read: the ids of one million tokens. Decoding it takes 25 ms, 50 ms for the shortest ids."""

RESPONSE_TTL_S = 600.0
"""Lifetime of a cached response. A model redeployed under its old name may have other ids."""

RESPONSE_OVERHEAD_BYTES = 500
"""Memory of a cached response beside its ids."""

ATTEMPTS = 2
"""Most servers tried per request, if there is time, so that a server that just vanished costs no prefix."""

KNOWN_TO_ENGINES = frozenset({
    NoPrefixReason.NO_TOKENIZER,
    NoPrefixReason.OWN_RENDERER,
    NoPrefixReason.NO_CHAT_TEMPLATE,
    NoPrefixReason.REQUEST_TEMPLATE,
    NoPrefixReason.ALTERED_PROMPT,
    NoPrefixReason.UNSUPPORTED_ITEM,
})  # fmt: skip
"""Reasons for missing ids that an engine does not share."""

Targets = Callable[[], Sequence[str]]
"""Base URLs of the usable servers, in any order."""

OnOutcome = Callable[[str, float], None]
"""Called with the outcome of a request, one of a few fixed words, and its seconds."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Settings of the requests to engines.

    Attributes:
        api: the API to use.
        media: whether chats with media are sent, which the engine then downloads and processes once more.
        timeout_s: limit of one request, including all attempts and waiting for a connection.
        max_concurrent: most requests at once.
        cache_bytes: memory for cached responses.
        failures: failures in a row after which a server is skipped for a while.
        cooldown_s: time for which it is skipped.
        api_key: sent as bearer token; empty to send none.
    """

    api: RemoteApi = RemoteApi.RENDER
    media: bool = False
    timeout_s: float = 0.3
    max_concurrent: int = 16
    cache_bytes: int = 64 * 2**20
    failures: int = 5
    cooldown_s: float = 5.0
    api_key: str = field(default="", repr=False)


class RemoteTokenizer:
    """Gets ids from an engine if kvatlas cannot compute them.

    Args:
        targets: base URLs of the servers.
        options: settings of the requests.
        clock: monotonic seconds.
        on_outcome: called after every request. Outcomes: `answered`; `cached`; `refused`, the engine rejects the
            request; `failed`, the engine fails on it; `unusable`, the engine does not serve such requests;
            `unreachable`; `timeout`; `too_large`; `malformed`; `unavailable`, there is no server, or none that may be
            used; `abandoned`, the caller stopped waiting.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        options: RemoteOptions,
        clock: Callable[[], float],
        on_outcome: OnOutcome,
    ) -> None:
        self.options = options
        self.targets, self._clock, self._on_outcome = targets, clock, on_outcome
        self._breakers: dict[str, CircuitBreaker] = {}
        self._next = 0
        self._cache: TTLCache[bytes, TokenPrompt] = TTLCache(
            options.cache_bytes, RESPONSE_TTL_S, timer=clock, getsizeof=_size_bytes
        )
        self._session: aiohttp.ClientSession | None = None

    @property
    def n_open(self) -> int:
        """Servers that are skipped because they failed."""
        return sum(breaker.is_open for breaker in self._breakers.values())

    @property
    def cached_bytes(self) -> int:
        """Memory of cached responses."""
        self._cache.expire()
        return int(self._cache.currsize)

    async def start(self) -> None:
        """Open the session; without it no request is sent."""
        import aiohttp

        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.options.max_concurrent),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
        )

    async def stop(self) -> None:
        """Close the session; requests in progress fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def may_help(self, prompt: TextPrompt | TokenPrompt | NoPrompt) -> bool:
        """Return whether an engine may know more ids than this prompt, which was made without one."""
        if isinstance(prompt, NoPrompt):
            return prompt.reason in KNOWN_TO_ENGINES
        return isinstance(prompt, TextPrompt) and prompt.fork is not None

    async def tokenize(self, request: ParsedRequest) -> TokenPrompt | None:
        """Return the ids of `request` as an engine computes them; None if none does, which is counted and never raised.

        Takes at most `options.timeout_s`.
        """
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt) and has_media(prompt.messages) and not self.options.media:
            return None
        wanted = remote_request(self.options.api, request)
        if wanted is None:
            return None
        digest, started = wanted.digest, self._clock()
        found: TokenPrompt | None = self._cache.get(digest)
        if found is not None:
            self._on_outcome("cached", 0.0)
            return found
        outcome = "abandoned"
        try:
            outcome, found = await self._send(wanted)
        finally:
            self._on_outcome(outcome, self._clock() - started)
        if found is not None and _size_bytes(found) <= self.options.cache_bytes:
            self._cache[digest] = found
        return found

    async def _send(self, wanted: RemoteRequest) -> tuple[str, TokenPrompt | None]:
        """Send a request to one server, or to a second one; returns the outcome and the ids."""
        outcome, deadline = "unavailable", asyncio.get_running_loop().time() + self.options.timeout_s
        for target, breaker in self._in_turn()[:ATTEMPTS]:
            permit = breaker.acquire(self._clock())
            if permit is None:
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    found = await self._post(target, wanted)
            except TimeoutError:
                self._failed(target, breaker, permit, "timeout", f"none within {self.options.timeout_s:g} s")
                return "timeout", None
            except RemoteError as error:
                outcome = error.outcome
                if outcome in ("refused", "failed"):  # a response, though without ids
                    breaker.succeeded(permit)
                    return outcome, None
                self._failed(target, breaker, permit, outcome, str(error))
            except asyncio.CancelledError:
                breaker.abandoned(permit)
                raise
            else:
                if breaker.is_open:
                    log.info("%s returns token ids again", masked_text(target))
                breaker.succeeded(permit)
                return "answered", found
        return outcome, None

    def _in_turn(self) -> list[tuple[str, CircuitBreaker]]:
        """Return the servers in the order to try, starting with the next one each time; skipped servers come last.

        Each with its breaker, since a later request forgets those of servers that have left.
        """
        targets = list(self.targets())
        for gone in self._breakers.keys() - set(targets):
            del self._breakers[gone]
        for target in targets:
            if target not in self._breakers:
                self._breakers[target] = CircuitBreaker(
                    failures=self.options.failures, cooldown_s=self.options.cooldown_s
                )
        self._next += 1
        first = self._next % len(targets) if targets else 0
        turned = targets[first:] + targets[:first]
        known = [(target, self._breakers[target]) for target in turned]
        return sorted(known, key=lambda each: each[1].is_open)

    def _failed(self, target: str, breaker: CircuitBreaker, permit: Permit, outcome: str, why: str) -> None:
        was_open = breaker.is_open
        breaker.failed(permit, self._clock())
        if breaker.is_open and not was_open:
            log.warning(
                "%s returns no token ids (%s: %s); skipped for %g s, its requests are routed without prefix",
                masked_text(target), outcome, masked_text(why), self.options.cooldown_s,
            )  # fmt: skip

    async def _post(self, target: str, wanted: RemoteRequest) -> TokenPrompt:
        import aiohttp

        if self._session is None:
            raise RemoteError("unreachable", "the session is closed")
        try:
            async with self._session.post(
                target + wanted.path, data=wanted.body, allow_redirects=False
            ) as response:
                body = bytearray()
                while chunk := await response.content.readany():
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise RemoteError("too_large", f"the response is above {MAX_RESPONSE_BYTES} bytes")
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise RemoteError("unreachable", str(error) or type(error).__name__) from error
        if response.status != 200:
            raise _status_error(response.status, wanted.path, bytes(body))
        return read_response(wanted.path, bytes(body))


def _status_error(status: int, path: str, body: bytes) -> RemoteError:
    """Return the error of a failed response: by the request (`refused`), in this one case (`failed`), or by the server.

    Only the last kind counts against a server: otherwise a client could disable it with odd requests.
    """
    # An engine reports an unknown model in its own error object; an unknown path gives this status alone.
    unknown_path = status == 404 and b'"error"' not in body
    if status in (400, 404, 413, 422) and not unknown_path:
        return RemoteError("refused", f"HTTP status {status}")
    if status == 500:
        return RemoteError("failed", f"HTTP status {status}")
    advice = ""
    if path.endswith("/render") and (unknown_path or status == 403):
        advice = "; start vLLM with --enable-scale-out, or set model.remoteTokenizer.api to tokenize"
    return RemoteError("unusable", f"HTTP status {status} for {path}{advice}")


def _size_bytes(prompt: TokenPrompt) -> int:
    media = sum(len(span.identifier) + RESPONSE_OVERHEAD_BYTES for span in prompt.media)
    return RESPONSE_OVERHEAD_BYTES + len(prompt.tokens) * prompt.tokens.itemsize + media
