"""Asking a running process over REST, for the command line."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from ...api.rest.models import ErrorOut
from ..errors import AskError

TIMEOUT_S = 10.0

_DATA = b"data: "
"""Begins the one line of an event that `/v1/live` sends."""

Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process wants and shows.

    Attributes:
        token_file: holds the bearer token that it wants; None for none.
        ca_file: PEM file with the authorities that vouch for its certificate; None for the system's.
    """

    token_file: Path | None = None
    ca_file: Path | None = None


class Asker:
    """Asks one process.

    Args:
        session: open, with the token where one is given.
        url: REST address such as `http://localhost:8080`.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url.rstrip("/")

    async def get(self, path: str, kind: type[Answer]) -> Answer | None:
        """The answer, None for an error that says there is no such thing.

        Raises:
            AskError: nobody answers there, or something that is not kvatlas does, or it refuses.
        """
        return await self._ask("GET", path, None, kind)

    async def post(self, path: str, body: object, kind: type[Answer]) -> Answer | None:
        """As `get`, with a body that becomes JSON."""
        return await self._ask("POST", path, body, kind)

    async def event(self, path: str, kind: type[Answer]) -> Answer:
        """The first of a stream of server-sent events; the others are not waited for.

        Raises:
            AskError: as `get`; or the stream ends without any.
        """
        url = f"{self._url}{path}"
        async with self._answer("GET", url) as response:
            if response.status != HTTPStatus.OK:
                raise _refusal(url, response.status, await response.read())
            async for line in response.content:
                if line.startswith(_DATA):
                    return _read(url, response.status, line.removeprefix(_DATA), kind)
        raise AskError(f"{url}: ended without an event; is kvatlas about to stop?")

    async def text(self, path: str) -> str | None:
        """The answer as text, None where it is refused.

        Raises:
            AskError: nobody answers there.
        """
        async with self._answer("GET", f"{self._url}{path}") as response:
            return await response.text() if response.status == HTTPStatus.OK else None

    async def _ask(self, method: str, path: str, question: object, kind: type[Answer]) -> Answer | None:
        url = f"{self._url}{path}"
        async with self._answer(method, url, question) as response:
            body = await response.read()
        if response.status == HTTPStatus.OK:
            return _read(url, response.status, body, kind)
        refusal = _refusal(url, response.status, body)
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        raise refusal

    @asynccontextmanager
    async def _answer(
        self, method: str, url: str, question: object = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, url, json=question) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AskError(f"{url}: {type(error).__name__}: {error}; is kvatlas there? see --url") from error


def _read(url: str, status: int, body: bytes, kind: type[Answer]) -> Answer:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise AskError(f"{url}: answered {status}, not as kvatlas does; see --url") from error


def _refusal(url: str, status: int, body: bytes) -> AskError:
    message = _read(url, status, body, ErrorOut).error.message
    hint = "; see --token-file" if status == HTTPStatus.UNAUTHORIZED else ""
    return AskError(f"{url}: answered {status}: {message}{hint}")


@asynccontextmanager
async def asking(url: str, credentials: Credentials) -> AsyncGenerator[Asker]:
    """Asks the process whose REST address is `url`.

    Raises:
        AskError: a file cannot be used.
    """
    token_file, ca_file = credentials.token_file, credentials.ca_file
    try:
        headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"} if token_file else {}
    except (OSError, UnicodeDecodeError) as error:
        raise AskError(f"--token-file: {token_file} cannot be used: {error}") from error
    try:
        tls = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise AskError(f"--ca-file: {ca_file} cannot be used: {error}") from error
    timeout, connector = aiohttp.ClientTimeout(total=TIMEOUT_S), aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        yield Asker(session, url)
