"""HTTP requests to the API server."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from .access import Access
from .credentials import Credentials
from .errors import ADVICE, OF_PROXY, AccessError, Failure, RequestFailedError
from .wire import is_group_list, read_status

if TYPE_CHECKING:
    import aiohttp  # its 11 MB are for processes that send requests

CONNECT_S = 5.0
"""Time limit for a connection, so that one attempt to reach a server that is away does not delay the next for long."""

RESPONSE_S = 60.0
"""Time limit for a response that is not a watch; API servers use the same limit."""

MAX_BODY_BYTES = 128 * 2**20
"""Largest response read: a page of 500 pods with 256 KiB each."""

MAX_ERROR_BYTES = 64 * 2**10
"""Largest part read of an error response."""

KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2), (socket.TCP_USER_TIMEOUT, 15_000)
)  # fmt: skip
"""TCP options that detect a lost peer after 20 s. A load balancer may answer for it; then the end of the watch does."""

CONTENT_TYPE = "application/json"

UNSERVED = b"404 page not found"
"""Body of an API server's response for a kind that it does not serve. Source: net/http's NotFound, which it uses; proxies written in Go
give the same."""

GROUPS = "/apis"
"""Path of the list of API groups, which every API server has."""

ALWAYS_SERVED = ("/api/", "/apis/coordination.k8s.io/", "/apis/discovery.k8s.io/")
"""Paths of kinds that every API server has."""


class ApiServer:
    """Client of the API server, over one HTTP session.

    Args:
        access: its address and credentials.
        clock: monotonic seconds.
    """

    def __init__(self, access: Access, *, clock: Callable[[], float]) -> None:
        self.access = access
        self._credentials = Credentials(access)
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._failed = False
        self._back = asyncio.Event()

    async def start(self) -> None:
        """Open the session."""
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "Accept": CONTENT_TYPE,
                "Accept-Encoding": "identity",  # compression delays watch events
                "User-Agent": f"kvatlas/{version('kvatlas')}",
            },
        )

    async def stop(self) -> None:
        """Close the session; pending requests fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def pause(self, seconds: float) -> bool:
        """Wait; return True at once when a request succeeds after others failed, so that all retry when one does."""
        try:
            async with asyncio.timeout(seconds):
                await self._back.wait()
        except TimeoutError:
            return False
        return True

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """Send a GET request and return the body.

        Raises:
            RequestFailedError: no response, or an error status.
        """
        return await self.send("GET", path, query=query)

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limit_s: float = RESPONSE_S,
    ) -> bytes:
        """Send a request that may take `limit_s`, and return the body of the response.

        Raises:
            RequestFailedError: no response, or an error status.
        """
        with self._noting_failures(f"{method} {path}"):
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
        """Watch a collection; return whether the server ended the watch.

        Args:
            path: path of the collection.
            query: parameters.
            deadline_s: time limit for the whole watch.
            opened: called when the server has accepted the watch.
            receive: called with each piece of the body, split anywhere; returning False ends the watch.

        Raises:
            RequestFailedError: no response, an error status, or a broken connection.
        """
        with self._noting_failures(f"watch of {path}"):
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
        """Yield a successful response. On 401, or if a replaced CA is why TLS failed, reload the files and retry once."""
        import aiohttp

        try:
            response = await self._once(method, path, query, body)
        except aiohttp.ClientConnectorCertificateError:
            if not self._credentials.renew_tls(now=self._clock()):
                raise
            response = await self._once(method, path, query, body)
        if response.status == 401 and self._credentials.renew(now=self._clock()):
            response.release()
            response = await self._once(method, path, query, body)
        async with response:
            if response.status >= 300:
                raise RequestFailedError(await self._refusal(method, path, response))
            if self._failed:
                self._failed = False
                self._back.set()
                self._back = asyncio.Event()
            yield response

    @contextmanager
    def _noting_failures(self, what: str) -> Generator[None]:
        """Raise every error of a request as a `RequestFailedError`, and note it for `pause`."""
        try:
            with _failures(what):
                yield
        except RequestFailedError:
            self._failed = True
            raise

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        import aiohttp

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

    async def _refusal(self, method: str, path: str, response: aiohttp.ClientResponse) -> Failure:
        """Describe an error response: a Status of the API server, or plain text of it or of a proxy before it."""
        body = await response.content.read(MAX_ERROR_BYTES)
        status = read_status(body)
        reason = status.message if status else response.reason or "no reason given"
        of_proxy = False
        if response.status == 404 and status is None:
            may_be_own = body.strip() == UNSERVED and not path.startswith(ALWAYS_SERVED)
            of_proxy = not may_be_own or not await self._is_behind()
        advice = OF_PROXY if of_proxy else ADVICE.get(response.status, "")
        wait = response.headers.get("Retry-After", "")
        if not wait.isdecimal() and status is not None and status.failure.retry_after_s is not None:
            wait = str(round(status.failure.retry_after_s))
        return Failure(
            "expired" if response.status == 410 else "http_status",
            f"{method} {path}: HTTP status {response.status}: {reason}{advice and f'; {advice}'}",
            status=response.status,
            retry_after_s=float(wait) if wait.isdecimal() else None,
            of_proxy=of_proxy,
        )

    async def _is_behind(self) -> bool:
        """Return whether an API server responds: with the list of its groups, or a Status that refuses it."""
        async with await self._once("GET", GROUPS, {}, None) as response:
            body = await _read(response, MAX_BODY_BYTES)
        return is_group_list(body) or read_status(body) is not None


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """Return a socket that detects a lost peer."""
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
            raise RequestFailedError(Failure("too_large", f"the response has more than {max_bytes} bytes"))
    return bytes(body)


@contextmanager
def _failures(what: str) -> Generator[None]:
    """Raise every error of a request as a `RequestFailedError`."""
    import aiohttp

    try:
        yield
    except TimeoutError:
        raise RequestFailedError(Failure("timeout", f"{what}: no complete response in time")) from None
    except aiohttp.ClientPayloadError as error:
        raise RequestFailedError(Failure("cut", f"{what}: the connection broke: {error}")) from error
    except aiohttp.ClientConnectorCertificateError as error:
        cause = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        reason = f"the certificate of {error.host}:{error.port} is not accepted: {cause}"
        raise RequestFailedError(Failure("unreachable", f"{what}: {reason}")) from error
    except aiohttp.ClientConnectorError as error:
        reason = f"no connection to {error.host}:{error.port}: {_plain(error.os_error)}"
        raise RequestFailedError(Failure("unreachable", f"{what}: {reason}")) from error
    except aiohttp.ServerDisconnectedError as error:
        reason = "the server closed the connection without a response"
        raise RequestFailedError(Failure("unreachable", f"{what}: {reason}")) from error
    except (aiohttp.ClientError, OSError, UnicodeError, AccessError) as error:
        raise RequestFailedError(
            Failure("unreachable", f"{what}: {str(error) or type(error).__name__}")
        ) from error


def _plain(error: OSError) -> str:
    """Return the system's words for an error; aiohttp and asyncio wrap it in text of their own, or in None."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if not error.errno or error.errno < 0:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno).lower()
