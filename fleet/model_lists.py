"""The models that endpoints serve, by their own lists: `GET /v1/models` of OpenAI's API."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from .endpoint import Endpoint

if TYPE_CHECKING:
    import aiohttp  # its 11 MB are for processes that send requests

INTERVAL_S = 10.0
"""Time between two requests to one endpoint: lists change when adapters are loaded."""

ROUND_S = 1.0
"""Time between two looks for endpoints whose list is due: a new one is asked within it."""

TIMEOUT_S = 2.0
MAX_CONCURRENT = 16
"""Most requests at one time. The time of one counts from its turn, so that servers that hang cost others no more than a delay."""

MAX_LIST_BYTES = 2**20
"""Longest list that is read, thousands of models."""


class ModelEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of a list. Further fields are the engine's own, and not passed on."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    object: str = ""
    created: int = 0
    owned_by: str = ""


class _Listed(ModelEntry, frozen=True):
    """One model as an engine lists it."""

    parent: str | None = None
    """Base model of an adapter."""


class _Answer(msgspec.Struct, frozen=True):
    """The list of one endpoint."""

    data: list[_Listed]


class ModelList(msgspec.Struct, frozen=True):
    """The list of all endpoints."""

    data: list[ModelEntry]
    object: str = "list"


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode

Addresses = Callable[[], Mapping[str, str]]
"""Returns the base URL of each endpoint that serves requests, by name."""


def serving_urls(endpoints: Iterable[Endpoint]) -> dict[str, str]:
    """Return the base URL of each endpoint that serves requests, by name."""
    return {each.name: f"http://{each.address}" for each in endpoints if each.address is not None}


class ModelLists:
    """Keeps the list of each endpoint up to date.

    Args:
        addresses: see `Addresses`.
        is_wanted: whether anybody reads the lists; otherwise none is requested.
    """

    def __init__(self, addresses: Addresses, is_wanted: Callable[[], bool]) -> None:
        self._addresses, self._is_wanted = addresses, is_wanted
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)
        self._lists: dict[str, tuple[_Listed, ...]] = {}
        self._due: dict[str, float] = {}
        self._urls: Mapping[str, str] = {}
        self._merged: bytes | None = None
        self._allowed: dict[str, frozenset[str]] = {}
        """Model -> addresses that may serve it."""
        self._unlisted: frozenset[str] = frozenset()

    def merged(self) -> bytes | None:
        """Return one list of the models of all endpoints as JSON, sorted by id; None if no endpoint has shown its list.

        A model of several endpoints is described as by the first one in the order of their names.
        """
        if self._merged is None and self._lists:
            models: dict[str, ModelEntry] = {}
            for _, entries in sorted(self._lists.items()):
                for each in entries:
                    models.setdefault(each.id, ModelEntry(each.id, each.object, each.created, each.owned_by))
            self._merged = _encode(ModelList([models[name] for name in sorted(models)]))
        return self._merged

    def addresses_of(self, model: str) -> frozenset[str] | None:
        """Return the addresses that may serve a model; None if all may.

        Those of an adapter list it. Those of another model list it, or have shown no list yet. A model that nobody lists may be
        served by those without list; if there are none, by all: lists may be out of date.
        Source: llm-d-router, models-responder.
        """
        return self._allowed.get(model, self._unlisted) or None if model else None

    async def follow(self) -> None:
        """Request the lists that are due, until cancelled."""
        while not self._is_wanted():  # noqa: ASYNC110 - a configuration in force may begin to want them
            await asyncio.sleep(ROUND_S)
        await asyncio.to_thread(
            importlib.import_module, "aiohttp"
        )  # takes 0.1 s, in which the event loop would be held
        import aiohttp

        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            while True:
                if self._is_wanted():
                    await self.look(session, asyncio.get_running_loop().time())
                await asyncio.sleep(ROUND_S)

    async def look(self, session: aiohttp.ClientSession, now: float) -> None:
        """Request the lists that are due at `now`, and forget those of endpoints that are gone."""
        addresses, before = dict(self._addresses()), self._urls
        is_same = addresses == before
        self._urls = addresses
        # a server at another address is another one, with models of its own
        self._forget([name for name in self._due if addresses.get(name) != before[name]])
        due = {name: url for name, url in addresses.items() if self._due.get(name, now) <= now}
        found = await asyncio.gather(*(self._request(session, url) for url in due.values()))
        for name, entries in zip(due, found, strict=True):
            if entries is None:
                self._due[name] = now + ROUND_S if name not in self._lists else now + INTERVAL_S
                continue
            self._due[name] = now + INTERVAL_S
            if self._lists.get(name) != entries:
                self._lists[name], self._merged = entries, None
        if self._merged is None or not is_same:
            self._index()

    def _index(self) -> None:
        """Note by model which addresses may serve it."""
        places = {name: url.partition("//")[2] for name, url in self._urls.items()}
        self._unlisted = frozenset(place for name, place in places.items() if name not in self._lists)
        serving: dict[str, set[str]] = {}
        adapters: set[str] = set()
        for name, entries in self._lists.items():
            for each in entries:
                serving.setdefault(each.id, set()).add(places[name])
                if each.parent:
                    adapters.add(each.id)
        self._allowed = {
            model: frozenset(found if model in adapters else found | self._unlisted)
            for model, found in serving.items()
        }

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            del self._due[name]
            if self._lists.pop(name, None) is not None:
                self._merged = None

    async def _request(self, session: aiohttp.ClientSession, url: str) -> tuple[_Listed, ...] | None:
        """Return the list of one endpoint, None if it has none that can be read."""
        import aiohttp

        try:
            async with self._turns, session.get(f"{url}/v1/models", allow_redirects=False) as response:
                if response.status != 200:
                    return None
                body = await response.content.read(MAX_LIST_BYTES + 1)
                while body and not response.content.at_eof() and len(body) <= MAX_LIST_BYTES:
                    body += await response.content.read(MAX_LIST_BYTES + 1 - len(body))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
        try:
            return tuple(_decode(body).data) if len(body) <= MAX_LIST_BYTES else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
