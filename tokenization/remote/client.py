"""Asks engines for token ids, over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
from cachetools import TTLCache

from ..chats.conversation import has_media
from ..errors import RemoteError
from ..model import ChatPrompt, NoPrefixReason, NoPrompt, ParsedRequest, TextPrompt, TokenPrompt
from .breaker import CircuitBreaker, Permit
from .wire import RemoteApi, RemoteRequest, read_response, remote_request

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 32 * 2**20
"""Largest answer read: eight times the ids of one million tokens."""

ANSWER_TTL_S = 600.0
"""Time that an answer is believed. A model that is deployed anew under its old name may have other ids."""

ANSWER_OVERHEAD_BYTES = 500
"""Memory of a kept answer beside its ids."""

ATTEMPTS = 2
"""Servers asked for one request at most, if there is time; so one that just went away costs no prefix."""

KNOWN_TO_ENGINES = frozenset({
    NoPrefixReason.NO_TOKENIZER,
    NoPrefixReason.OWN_RENDERER,
    NoPrefixReason.NO_CHAT_TEMPLATE,
    NoPrefixReason.REQUEST_TEMPLATE,
    NoPrefixReason.ALTERED_PROMPT,
    NoPrefixReason.UNSUPPORTED_ITEM,
})  # fmt: skip
"""Reasons for having no ids that lie here and not in the request."""

Targets = Callable[[], Sequence[str]]
"""Base URLs of servers that can be asked, in any order."""

OnOutcome = Callable[[str, float], None]
"""Told how a question ended, in one word of a fixed few, and the seconds it took."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How engines are asked.

    Attributes:
        api: which of their APIs.
        media: whether they are asked about chats with media, which are then downloaded and processed there once more.
        timeout_s: limit of one question, all attempts and waiting for a connection included.
        max_concurrent: questions under way at once.
        cache_bytes: memory for answers.
        failures: in a row, after which a server is not asked for a while.
        cooldown_s: that while.
        api_key: sent as bearer token; empty for none.
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
    """Tells ids that an engine computes and kvatlas cannot.

    Args:
        targets: base URLs of the servers.
        options: how they are asked.
        clock: monotonic seconds.
        on_outcome: told of every question. Outcomes: `answered`; `cached`; `refused`, the engine does not take the
            request; `failed`, it stumbles over it; `unusable`, it does not answer such questions; `unreachable`;
            `timeout`; `too_large`; `malformed`; `unavailable`, no server or none that may be asked; `abandoned`, nobody
            waited for the answer.
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
        self._answers: TTLCache[bytes, TokenPrompt] = TTLCache(
            options.cache_bytes, ANSWER_TTL_S, timer=clock, getsizeof=_size_bytes
        )
        self._session: aiohttp.ClientSession | None = None

    @property
    def n_open(self) -> int:
        """Servers that are not asked because they failed."""
        return sum(breaker.is_open for breaker in self._breakers.values())

    @property
    def cached_bytes(self) -> int:
        """Memory that answers take."""
        self._answers.expire()
        return int(self._answers.currsize)

    async def start(self) -> None:
        """Open the session; without it nothing is asked."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.options.max_concurrent),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
        )

    async def stop(self) -> None:
        """Close the session; questions under way fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def may_help(self, prompt: TextPrompt | TokenPrompt | NoPrompt) -> bool:
        """Whether an engine may know more than this, which is what is known without one."""
        if isinstance(prompt, NoPrompt):
            return prompt.reason in KNOWN_TO_ENGINES
        return isinstance(prompt, TextPrompt) and prompt.fork is not None

    async def tokenize(self, request: ParsedRequest) -> TokenPrompt | None:
        """The ids of `request` as an engine computes them; None when none tells, which is counted and never raised.

        Takes `options.timeout_s` at most.
        """
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt) and has_media(prompt.messages) and not self.options.media:
            return None
        asked = remote_request(self.options.api, request)
        if asked is None:
            return None
        digest, started = asked.digest, self._clock()
        found: TokenPrompt | None = self._answers.get(digest)
        if found is not None:
            self._on_outcome("cached", 0.0)
            return found
        outcome = "abandoned"
        try:
            outcome, found = await self._ask(asked)
        finally:
            self._on_outcome(outcome, self._clock() - started)
        if found is not None and _size_bytes(found) <= self.options.cache_bytes:
            self._answers[digest] = found
        return found

    async def _ask(self, asked: RemoteRequest) -> tuple[str, TokenPrompt | None]:
        """How asking one server, or a second one, ended."""
        outcome, deadline = "unavailable", asyncio.get_running_loop().time() + self.options.timeout_s
        for target in self._in_turn()[:ATTEMPTS]:
            breaker = self._breakers[target]
            permit = breaker.acquire(self._clock())
            if permit is None:
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    found = await self._post(target, asked)
            except TimeoutError:
                self._failed(target, breaker, permit, "timeout", f"none within {self.options.timeout_s:g} s")
                return "timeout", None
            except RemoteError as error:
                outcome = error.outcome
                if outcome in ("refused", "failed"):  # an answer, if none that helps
                    breaker.succeeded(permit)
                    return outcome, None
                self._failed(target, breaker, permit, outcome, str(error))
            except asyncio.CancelledError:
                breaker.abandoned(permit)
                raise
            else:
                if breaker.is_open:
                    log.info("%s tells token ids again", target)
                breaker.succeeded(permit)
                return "answered", found
        return outcome, None

    def _in_turn(self) -> list[str]:
        """Servers to ask, each time beginning with the next one; those that may not be asked come last."""
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
        return sorted(turned, key=lambda target: self._breakers[target].is_open)

    def _failed(self, target: str, breaker: CircuitBreaker, permit: Permit, outcome: str, why: str) -> None:
        was_open = breaker.is_open
        breaker.failed(permit, self._clock())
        if breaker.is_open and not was_open:
            log.warning(
                "%s does not tell token ids (%s: %s); not asked for %g s, its requests are routed without prefix",
                target, outcome, why, self.options.cooldown_s,
            )  # fmt: skip

    async def _post(self, target: str, asked: RemoteRequest) -> TokenPrompt:
        if self._session is None:
            raise RemoteError("unreachable", "the session is closed")
        try:
            async with self._session.post(
                target + asked.path, data=asked.body, allow_redirects=False
            ) as response:
                body = bytearray()
                while chunk := await response.content.readany():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise RemoteError("too_large", f"the answer is above {MAX_ANSWER_BYTES} bytes")
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise RemoteError("unreachable", str(error) or type(error).__name__) from error
        if response.status != 200:
            raise _status_error(response.status, asked.path, bytes(body))
        return read_response(asked.path, bytes(body))


def _status_error(status: int, path: str, body: bytes) -> RemoteError:
    """Whose fault an answer is that is none: the request's (`refused`), its server's in this one case, or the server's.

    Only the last kind counts against a server, or a client could have it taken out of use with odd requests.
    """
    # An engine names an unknown model in an error of its own; of a path it does not know it says only this.
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
    media = sum(len(span.identifier) + ANSWER_OVERHEAD_BYTES for span in prompt.media)
    return ANSWER_OVERHEAD_BYTES + len(prompt.tokens) * prompt.tokens.itemsize + media
