"""REST client of a running process, for the command line."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

# The client of the standard library: aiohttp's import alone takes half of what a command may take.
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from ...api.rest.models import ErrorOut
from ...configs.secrets import masked_text
from ...configs.token_file import read_token
from ..errors import AskError

TIMEOUT_S = 10.0
"""Longest wait for a connection, and between two pieces of a response."""

TOTAL_S = 60.0
"""Longest time of a request once it is connected, whatever the pieces of its response."""

MAX_ANSWER_BYTES = 256 * 2**20
"""Longest response, and longest line of a stream. 10,000 endpoints take a fifth of it."""

_DATA = b"data: "
"""Begins the one line of an event that `/v1/live` sends."""

Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files that the command authenticates with.

    Attributes:
        token_file: holds the bearer token; None to send none.
        ca_file: PEM file with the authorities of the process's certificate; None for the system's.
    """

    token_file: Path | None = None
    ca_file: Path | None = None


class Client:
    """Sends requests to one process, each over a connection of its own.

    Args:
        url: REST address such as `http://localhost:8080`.
        credentials: files to authenticate with; they are read here.

    Attributes:
        url: the address for display, without secrets.

    Raises:
        AskError: the address or a file cannot be used.
    """

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._base = url.rstrip("/")
        self.url = masked_text(self._base)
        self._headers = _authorization(credentials.token_file)
        try:
            self._tls = ssl.create_default_context(cafile=credentials.ca_file)
        except OSError as error:
            raise AskError(f"--ca-file: {credentials.ca_file} cannot be used: {error}") from error

    def get(self, path: str, kind: type[Answer]) -> Answer | None:
        """Return the decoded response, None on 404.

        Raises:
            AskError: no response, a response that is not kvatlas's, or an error status.
        """
        return self._decoded("GET", path, None, kind)

    def require(self, path: str, kind: type[Answer]) -> Answer:
        """Return the decoded response of a path that every kvatlas has.

        Raises:
            AskError: as `get`; or 404.
        """
        found = self.get(path, kind)
        if found is None:
            raise AskError(f"{self.url}: knows no {urlsplit(path).path}; is it an older kvatlas? see --url")
        return found

    def post(self, path: str, body: object, kind: type[Answer]) -> Answer | None:
        """Send a JSON body; otherwise as `get`."""
        return self._decoded("POST", path, body, kind)

    def put(self, path: str, body: object, kind: type[Answer]) -> Answer | None:
        """Change something with a JSON body; otherwise as `get`."""
        return self._decoded("PUT", path, body, kind)

    def event(self, path: str, kind: type[Answer]) -> Answer:
        """Return the first of a stream of server-sent events, without reading the others.

        Raises:
            AskError: as `get`; or the stream ends without an event.
        """
        url = f"{self.url}{path}"
        with self._response("GET", path) as response:
            if response.status != HTTPStatus.OK:
                raise _refusal(url, response.status, _whole(response))
            while line := _bounded(response.readline(MAX_ANSWER_BYTES + 1)):
                if line.startswith(_DATA):
                    return _decode(url, response.status, line.removeprefix(_DATA), kind)
        raise AskError(f"{url}: ended without an event; is kvatlas about to stop?")

    def text(self, path: str) -> str | None:
        """Return the response as text, None on any status but 200.

        Raises:
            AskError: no response.
        """
        with self._response("GET", path) as response:
            return _whole(response).decode() if response.status == HTTPStatus.OK else None

    def _decoded(self, method: str, path: str, body: object, kind: type[Answer]) -> Answer | None:
        url = f"{self.url}{path}"
        with self._response(method, path, body) as response:
            data = _whole(response)
        if response.status == HTTPStatus.OK:
            return _decode(url, response.status, data, kind)
        refusal = _refusal(url, response.status, data)
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        raise refusal

    @contextmanager
    def _response(self, method: str, path: str, body: object = None) -> Generator[HTTPResponse]:
        """Yield the response, its body unread.

        A ValueError here is an address that is none.
        """
        headers, data = self._headers, None
        if body is not None:
            headers, data = {**headers, "Content-Type": "application/json"}, json.dumps(body).encode()
        connection: HTTPConnection | None = None
        try:
            connection, target = self._connection(self._base + path)
            connection.connect()
            with _ended_in_time(connection.sock):
                connection.request(method, target, body=data, headers=headers)
                with connection.getresponse() as response:
                    yield response
        except (OSError, HTTPException, ValueError) as error:
            raise AskError(
                f"{self.url}{path}: {type(error).__name__}: {error}; is kvatlas there? see --url"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def _connection(self, url: str) -> tuple[HTTPConnection, str]:
        parts = urlsplit(url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("want http://HOST:PORT or https://HOST:PORT")
        if parts.scheme == "https":
            return HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=self._tls), target
        return HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S), target


@contextmanager
def _ended_in_time(connected: socket.socket) -> Generator[None]:
    """End the connection after `TOTAL_S`, since its own timeout begins anew with every byte.

    Raises:
        TimeoutError: the time was over before the body of the `with` was.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        with suppress(OSError):  # closed by the other side
            # not TLS's own one, which would unwrap what is being read
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(TOTAL_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (AskError, OSError, HTTPException, ValueError):
        if not is_over.is_set():
            raise
    finally:
        timer.cancel()
    if is_over.is_set():
        raise TimeoutError(f"no complete response within {TOTAL_S:g} s")


def _whole(response: HTTPResponse) -> bytes:
    data = _bounded(response.read(MAX_ANSWER_BYTES + 1))
    if response.length:  # a read with a limit does not raise at an early end
        raise IncompleteRead(data, response.length)
    return data


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_ANSWER_BYTES:
        raise ValueError(f"the response is longer than {MAX_ANSWER_BYTES} bytes")
    return data


def _authorization(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {read_token(token_file).decode()}"}
    except ValueError as error:
        raise AskError(f"--token-file: {error}") from error


def _decode(url: str, status: int, body: bytes, kind: type[Answer]) -> Answer:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise AskError(f"{url}: answered {status}, not as kvatlas does; see --url") from error


def _refusal(url: str, status: int, body: bytes) -> AskError:
    message = _decode(url, status, body, ErrorOut).error.message
    hint = "; see --token-file" if status == HTTPStatus.UNAUTHORIZED else ""
    return AskError(f"{url}: answered {status}: {message}{hint}")
