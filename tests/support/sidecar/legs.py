"""Requests of a sidecar to engines, and the passing on of their answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from support.sidecar.route import Headers, passed_on
from support.sidecar.usage import EventUsage, with_cached_tokens

NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the client library would add; legs have those of the request."""

_EVENTS = "text/event-stream"


class NoAnswerError(Exception):
    """An engine did not answer.

    Args:
        text: why.
        is_refused: whether nothing listens there.
        is_address: whether the address is none.
    """

    def __init__(self, text: str, *, is_refused: bool = False, is_address: bool = False) -> None:
        super().__init__(text)
        self.is_refused, self.is_address = is_refused, is_address


class BrokenAnswerError(Exception):
    """An engine broke off in the middle of an answer."""


class Answer(NamedTuple):
    """A whole answer of an engine.

    Attributes:
        status: HTTP status.
        headers: for the client.
        body: as received.
    """

    status: int
    headers: Headers
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def passed_on(self) -> web.Response:
        return web.Response(status=self.status, headers=self.headers, body=self.body)


@dataclass(frozen=True)
class Call:
    """A request of a client, or a leg of it.

    Attributes:
        request: the client's.
        path: path and query, as sent.
        headers: of the legs.
        body: of the leg.
    """

    request: web.Request
    path: str
    headers: Headers
    body: bytes

    def with_body(self, body: bytes) -> Call:
        return replace(self, body=body)

    def with_header(self, name: str, value: str, *, replaces: bool = False) -> Call:
        headers: CIMultiDict[str] = self.headers.copy()
        if replaces:
            headers.popall(name, None)
        headers.add(name, value)
        return replace(self, headers=headers)


class Legs:
    """Sender of requests to engines.

    Args:
        session: its connections.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def whole(self, target: str, call: Call, *, method: str | None = None) -> Answer:
        """Send a leg to `target`, `HOST:PORT` or more of a URL, and return its answer.

        Raises:
            NoAnswerError: there is none.
            BrokenAnswerError: it broke off.
        """
        async with self._sent(target, call, method) as answer:
            return Answer(answer.status, passed_on(answer.headers, ""), await _body(answer))

    async def forward(self, target: str, call: Call, *, cached: int | None = None) -> web.StreamResponse:
        """Send a leg, and pass its answer on to the client as it comes.

        Args:
            target: `HOST:PORT` of the engine.
            call: the leg.
            cached: tokens that the prefill engine had cached; None leaves the answer as it is.

        Raises:
            NoAnswerError: there is no answer.
            BrokenAnswerError: it broke off.
        """
        async with self._sent(target, call, None) as answer:
            headers = passed_on(answer.headers, "")
            if answer.content_type != _EVENTS:
                body = await _body(answer)
                if cached is not None and "Content-Encoding" not in headers:
                    body = with_cached_tokens(body, cached)
                return web.Response(status=answer.status, headers=headers, body=body)
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(call.request)
            usage = EventUsage(cached) if cached is not None else None
            try:
                async for piece in answer.content.iter_any():
                    await response.write(piece if usage is None else usage.feed(piece))
            except aiohttp.ClientError as error:
                raise BrokenAnswerError(str(error)) from error
            if usage is not None:
                await response.write(usage.end())
            await response.write_eof()
            return response

    def _sent(self, target: str, call: Call, method: str | None) -> _Sent:
        return _Sent(self._session, target, call, method or call.request.method)


class _Sent:
    """A request that is under way, as an asynchronous context."""

    def __init__(self, session: aiohttp.ClientSession, target: str, call: Call, method: str) -> None:
        self._session, self._target, self._call, self._method = session, target, call, method
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            self._answer = await self._session.request(
                self._method,
                url_of(self._target, self._call.path),
                headers=self._call.headers,
                data=self._call.body or None,
                allow_redirects=False,
                skip_auto_headers=NOT_ADDED,
            )
        except aiohttp.ClientConnectorError as error:
            raise NoAnswerError(str(error), is_refused=True) from error
        except (aiohttp.InvalidURL, ValueError) as error:
            raise NoAnswerError(f"invalid address {self._target}", is_address=True) from error
        except aiohttp.ClientError as error:
            raise NoAnswerError("EOF") from error
        return self._answer

    async def __aexit__(self, *_: object) -> None:
        if self._answer is not None:
            self._answer.close()


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    try:
        return await answer.read()
    except aiohttp.ClientError as error:
        raise BrokenAnswerError(str(error)) from error


def url_of(target: str, path: str) -> URL:
    """Return the URL of a path at a target, which may have a user, a path and a query itself.

    Raises:
        ValueError: the target is no address.
    """
    base, _, before = target.rpartition("@")[2].partition("?")
    path, _, query = path.partition("?")
    if " " in base:
        raise ValueError(base)
    text = f"http://{base.rstrip('/')}{path}"
    queries = "&".join(each for each in (before, query) if each)
    return URL(f"{text}?{queries}" if queries else text, encoded=True)
