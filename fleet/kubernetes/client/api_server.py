"""Requests to the API server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version

import aiohttp

from .access import Access
from .credentials import Credentials
from .errors import ADVICE, AccessError, Failure, RequestFailedError
from .wire import read_status

CONNECT_S = 10.0
"""Limit of making a connection."""

ANSWER_S = 60.0
"""Limit of one answer that is not a watch; API servers give up at the same."""

MAX_BODY_BYTES = 128 * 2**20
"""Largest answer read: a page of 500 pods with 256 KiB each."""

MAX_ERROR_BYTES = 64 * 2**10
"""Most that is read of an answer that says no."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))
"""A peer that vanished without a word is noticed after a minute, though watches may be silent for longer."""

CONTENT_TYPE = "application/json"


class ApiServer:
    """The API server, over one HTTP session.

    Args:
        access: how to reach it.
        clock: monotonic seconds.
    """

    def __init__(self, access: Access, *, clock: Callable[[], float]) -> None:
        self.access = access
        self._credentials = Credentials(access)
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "Accept": CONTENT_TYPE,
                "Accept-Encoding": "identity",  # compressed watches come late
                "User-Agent": f"kvatlas/{version('kvatlas')}",
            },
        )

    async def stop(self) -> None:
        """Close the session; requests under way fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of the answer.

        Raises:
            RequestFailedError: there was none, or it says no.
        """
        return await self.send("GET", path, query=query)

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limit_s: float = ANSWER_S,
    ) -> bytes:
        """The body of the answer to any request, which may take `limit_s`.

        Raises:
            RequestFailedError: there was none, or it says no.
        """
        with _failures(f"{method} {path}"):
            async with (
                asyncio.timeout(limit_s),
                self._request(method, path, query or {}, body) as response,
            ):
                return await _read(response, MAX_BODY_BYTES)

    async def watch(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        deadline_s: float,
        opened: Callable[[], None],
        receive: Callable[[bytes], bool],
    ) -> bool:
        """An answer that comes bit by bit; whether the server ended it.

        Args:
            path: of the collection.
            query: parameters.
            deadline_s: limit of the whole answer.
            opened: told that the server accepts.
            receive: given pieces, cut anywhere; False ends the watch.

        Raises:
            RequestFailedError: there was none, it says no, or it broke off.
        """
        with _failures(f"watch of {path}"):
            async with asyncio.timeout(deadline_s), self._request("GET", path, query, None) as response:
                opened()
                async for piece in response.content.iter_any():
                    if not receive(piece):
                        return False
                return True

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """An answer that says yes. A token that is refused is read anew, once."""
        response = await self._once(method, path, query, body)
        if response.status == 401 and self._credentials.renew(now=self._clock()):
            response.release()
            response = await self._once(method, path, query, body)
        async with response:
            if response.status >= 300:
                raise RequestFailedError(await _refusal(method, path, response))
            yield response

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RequestFailedError(Failure("unreachable", "the session is closed"))
        headers = {"Content-Type": CONTENT_TYPE} if body is not None else {}
        now = self._clock()
        if token := self._credentials.token(now=now):
            headers["Authorization"] = f"Bearer {token}"
        tls: ssl.SSLContext | bool = True
        if self.access.url.startswith("https:"):
            tls = self._credentials.tls(now=now)
        return await self._session.request(
            method,
            self.access.url + path,
            params=query,
            data=body,
            headers=headers,
            ssl=tls,
            server_hostname=self.access.server_name,
            allow_redirects=False,  # the token is for this server alone
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """A socket that notices when its peer is gone."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    while piece := await response.content.readany():
        body += piece
        if len(body) > max_bytes:
            raise RequestFailedError(Failure("too_large", f"the answer is above {max_bytes} bytes"))
    return bytes(body)


async def _refusal(method: str, path: str, response: aiohttp.ClientResponse) -> Failure:
    """What an answer says that says no: a Status, or plain text from what stands before the API."""
    status = read_status(await response.content.read(MAX_ERROR_BYTES))
    said = status.message if status else response.reason or "no reason given"
    advice = f"; {ADVICE[response.status]}" if response.status in ADVICE else ""
    wait = response.headers.get("Retry-After", "")
    if not wait.isdecimal() and status is not None and status.failure.retry_after_s is not None:
        wait = str(round(status.failure.retry_after_s))
    return Failure(
        "expired" if response.status == 410 else "http_status",
        f"{method} {path}: HTTP status {response.status}: {said}{advice}",
        status=response.status,
        retry_after_s=float(wait) if wait.isdecimal() else None,
    )


@contextmanager
def _failures(what: str) -> Generator[None]:
    """Whatever can go wrong with a request, as a `RequestFailedError`."""
    try:
        yield
    except TimeoutError:
        raise RequestFailedError(Failure("timeout", f"{what}: no whole answer in time")) from None
    except aiohttp.ClientPayloadError as error:
        raise RequestFailedError(Failure("cut", f"{what}: broke off: {error}")) from error
    except (aiohttp.ClientError, OSError, UnicodeError, AccessError) as error:
        raise RequestFailedError(
            Failure("unreachable", f"{what}: {str(error) or type(error).__name__}")
        ) from error
