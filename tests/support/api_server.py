"""Fake of a Kubernetes API server: object store and watch protocol over real HTTP, with the faults of real ones.

What it answers follows the API concepts: one history of positions for all kinds, lists in pages of one position, watches
from a position with selectors, bookmarks, 410 in both forms, Status objects for what is refused.
"""

from __future__ import annotations

import asyncio
import copy
import re
import ssl
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from aiohttp import web

from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.sim.held_port import HeldPort
from support.api_rights import ACCESS_REVIEWS, TOKEN_REVIEWS, Rights
from support.api_watch import Happening, Json, Watching, cut, line, selects, status, status_body
from support.custom_resources import custom_resource

NAMESPACED = re.compile(
    r"(?P<collection>/(?:api|apis/[^/]+)/[^/]+/namespaces/[^/]+/[^/]+)(?:/(?P<name>[^/]+))?"
)
GROUPS = "/apis"
"""Path of the list of API groups, which everybody with a token may read."""

KINDS = {
    "pods": "Pod",
    "inferencepools": "InferencePool",
    "inferenceobjectives": "InferenceObjective",
    "inferencemodelrewrites": "InferenceModelRewrite",
    "leases": "Lease",
    "endpointslices": "EndpointSlice",
}


NEEDED = frozenset({
    ("list", "pods"), ("watch", "pods"),
    ("list", "inferencepools"), ("watch", "inferencepools"),
    ("list", "inferenceobjectives"), ("watch", "inferenceobjectives"),
    ("list", "inferencemodelrewrites"), ("watch", "inferencemodelrewrites"),
    ("get", "leases"), ("create", "leases"), ("update", "leases"),
})  # fmt: skip
"""Verb and kind of every request that kvatlas makes; Roles allow exactly these."""


@dataclass
class Faults:
    """Injected faults."""

    unauthorized: bool = False
    forbidden: set[str] = field(default_factory=set[str])
    """Collections without permission to read."""
    not_served: set[str] = field(default_factory=set[str])
    """Collections whose kind the server does not know."""
    proxy: tuple[int, str] | None = None
    """Status and text with which a proxy answers all requests, in place of the server."""
    n_throttled: int = 0
    """Further requests to refuse with 429."""
    n_storage: int = 0
    """Further requests to refuse with 429 because storage initializes, as 1.37 does after `/readyz`."""
    retry_after: str = "0"
    n_failing: int = 0
    """Further requests to fail with 500."""
    n_cut_lists: int = 0
    """Further lists to cut in the middle."""
    n_lagging: int = 0
    """Further watches to send to a replica that is behind their position."""
    stalled: bool = False
    """Whether watches are accepted but send nothing and never end."""
    slow_lists: set[str] = field(default_factory=set[str])
    """Collections whose lists get no response before `heal`."""
    expired_by: Literal["stream", "http"] = "stream"
    """Way to refuse a watch from a compacted position."""


class ApiServerDouble:
    """The fake server, listening on `url`."""

    def __init__(self) -> None:
        self.position = 100
        self.forgotten = 0
        """Last compacted position."""
        self.history: list[Happening] = []
        self.faults = Faults()
        self.rights = Rights()
        self.bearer: str | None = None
        """Required bearer token; None accepts any."""
        self.max_page = 1000
        self.piece_bytes = 0
        """Bytes per piece in which watches are written; 0 writes whole events."""
        self.max_watch_s = 3600.0
        self.n_initializing = 0
        """Requests refused with 429 after each start, while storage initializes."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """(RBAC verb, collection) -> requests."""
        self.queries: list[Mapping[str, str]] = []
        self.groups: dict[str, list[str]] = {}
        """API group and version -> kinds in its discovery document."""
        self.odd_groups: set[str] = set()
        """API groups with a malformed discovery document."""
        self.n_discoveries = 0
        self._objects: dict[str, dict[str, Json]] = {}
        self._snapshots: dict[str, tuple[int, list[Json]]] = {}
        self._changed = asyncio.Event()
        self._watches: set[Watching] = set()
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._dead: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._uids = 0
        self._port = HeldPort()
        self._scheme = "http"
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._port.number}"

    @property
    def access(self) -> Access:
        return Access(self.url)

    @property
    def n_watches(self) -> int:
        return len(self._watches)

    def is_watched(self, collection: str) -> bool:
        return any(watching.collection == collection for watching in self._watches)

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen, always on the same port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.001, handler_cancellation=True)
        await self._runner.setup()
        self._scheme, self._tls = "https" if tls else "http", tls
        self.faults.n_storage = self.n_initializing
        await self.accept_connections()

    async def accept_connections(self) -> None:
        """Accept new connections again."""
        assert self._runner is not None
        self._site = web.TCPSite(
            self._runner, "127.0.0.1", self._port.number, reuse_address=True, ssl_context=self._tls
        )
        await self._site.start()

    async def refuse_connections(self) -> None:
        """Refuse new connections; open ones stay."""
        if self._site is not None:
            await self._site.stop()

    async def stop(self) -> None:
        """Drop every connection and stop listening; the objects stay."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.break_watches("reset")
            await runner.cleanup()

    # objects

    def objects(self, collection: str) -> dict[str, Json]:
        return self._objects.get(collection, {})

    def put(self, collection: str, name: str, body: Json) -> Json:
        """Create or replace an object; replacing keeps the uid. Custom resources must conform to their CRD."""
        group, _, kind = collection.removeprefix("/apis/").partition("/namespaces/")
        if (resource := custom_resource(group, kind.rpartition("/")[2])) is not None:
            body = resource.defaulted(body)
        found = self.objects(collection).get(name)
        self._uids += found is None
        self.position += 1
        made = copy.deepcopy(body)
        made["metadata"] = made.get("metadata", {}) | {
            "name": name,
            "namespace": collection.split("/")[-2],
            "uid": found["metadata"]["uid"] if found else f"uid-{self._uids}",
            "resourceVersion": str(self.position),
        }
        self._objects.setdefault(collection, {})[name] = made
        self._note(Happening(self.position, collection, found, made))
        return made

    def delete(self, collection: str, name: str) -> None:
        self.position += 1
        gone = self._objects[collection].pop(name)
        self._note(Happening(self.position, collection, gone, None))

    def compact(self) -> None:
        """Compact the history, as etcd does every five minutes."""
        self.forgotten = self.position
        self._snapshots.clear()

    def bookmark(self) -> None:
        """Send a bookmark to every watch, as servers do about once a minute."""
        for watching in self._watches:
            watching.bookmark_due = True
        self._wake()

    def heal(self) -> None:
        """Remove all faults."""
        self.faults = Faults()
        self.max_page, self.piece_bytes = 1000, 0
        for connection in self._dead:
            connection.abort()
        self._dead.clear()
        self._wake()

    def stall_connections(self) -> None:
        """Make all open connections silent for ever, as behind a load balancer that lost its state; new ones work."""
        self._dead.update(self._connections)

    def break_watches(self, how: Literal["close", "reset", "mid_line", "error"]) -> None:
        """End every open watch: properly, by a reset, inside a line, or with a Status of 500."""
        for watching in self._watches:
            watching.end = how
        self._wake()

    def _note(self, happening: Happening) -> None:
        self.history.append(happening)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # answers

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            self._connections.add(request.transport)
        if self.is_silent(request):
            await asyncio.Event().wait()
        if (said := self.faults.proxy) is not None:
            return web.Response(status=said[0], text=said[1], content_type="text/html")
        if request.path in (TOKEN_REVIEWS, ACCESS_REVIEWS):
            return self._refusal(request, request.path) or await self.rights.review(request)
        found = NAMESPACED.fullmatch(request.path)
        if found is None:
            return self._refusal(request, request.path) or self._kinds(request.path)
        collection, name = found["collection"], found["name"]
        self.requests[_verb(request, name), collection] += 1
        self.queries.append(dict(request.query))
        refused = self._refusal(request, collection, name)
        if refused is not None:
            return refused
        if name is not None or request.method != "GET":
            return await self._one(request, collection, name)
        if request.query.get("watch") == "true":
            return await self._watch(request, collection)
        while collection in self.faults.slow_lists:
            await self._changed.wait()
        return await self._list(request, collection)

    def _kinds(self, path: str) -> web.Response:
        """Serve the discovery document of an API group, or the list of groups."""
        if path == GROUPS:
            return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
        self.n_discoveries += 1
        if path.removeprefix("/apis/") in self.odd_groups:
            return web.Response(text="not JSON")
        kinds = self.groups.get(path.removeprefix("/apis/"))
        if kinds is None:
            return web.Response(status=404, text="404 page not found\n")
        resources = [
            {"name": kind, "kind": KINDS[kind], "namespaced": True, "verbs": ["list"]} for kind in kinds
        ]
        return web.json_response({"kind": "APIResourceList", "resources": resources})

    def _refusal(self, request: web.Request, collection: str, name: str | None = None) -> web.Response | None:
        faults = self.faults
        wanted = self.bearer is None or request.headers.get("Authorization") == f"Bearer {self.bearer}"
        if faults.unauthorized or not wanted:
            return status(401, "Unauthorized", "Unauthorized")
        if collection in faults.forbidden:
            return status(403, "Forbidden", f"{collection.rpartition('/')[2]} is forbidden: User cannot list")
        if collection != GROUPS and (refused := self.rights.refusal(_verb(request, name), collection)):
            return refused
        if collection in faults.not_served:
            return web.Response(status=404, text="404 page not found\n")
        if faults.n_storage:
            faults.n_storage -= 1
            refused = status(429, "TooManyRequests", "storage is (re)initializing", retryAfterSeconds=1)
            refused.headers["Retry-After"] = "1"
            return refused
        if faults.n_throttled:
            faults.n_throttled -= 1
            return web.Response(
                status=429, text="Too many requests", headers={"Retry-After": faults.retry_after}
            )
        if faults.n_failing:
            faults.n_failing -= 1
            return status(500, "InternalError", "etcdserver: request timed out")
        return None

    async def _one(self, request: web.Request, collection: str, name: str | None) -> web.Response:
        """Get, create, update or delete one object."""
        body: Json = await request.json() if request.can_read_body else {}
        name = name or str(body["metadata"]["name"])
        there = self.objects(collection).get(name)
        match request.method:
            case "POST" if there is not None:
                return status(409, "AlreadyExists", f'"{name}" already exists')
            case "POST":
                return web.json_response(self.put(collection, name, body), status=201)
            case _ if there is None:
                return status(404, "NotFound", f'"{name}" not found')
            case "GET":
                return web.json_response(there)
            case "PUT" if body["metadata"].get("resourceVersion") not in (
                None,
                there["metadata"]["resourceVersion"],
            ):
                return status(409, "Conflict", "the object has been modified")
            case "PUT":
                return web.json_response(self.put(collection, name, body))
            case _:
                return status(405, "MethodNotAllowed", request.method)

    async def _list(self, request: web.Request, collection: str) -> web.StreamResponse:
        limit = min(int(request.query.get("limit", 0)) or 10**9, self.max_page)
        token = request.query.get("continue")
        if token is None:
            chosen = [each for each in self.objects(collection).values() if selects(request.query, each)]
            position, offset = self.position, 0
        else:
            snapshot, _, text = token.partition(":")
            if snapshot not in self._snapshots:
                return status(410, "Expired", "The provided continue parameter is too old")
            (position, chosen), offset = self._snapshots[snapshot], int(text)
        meta: Json = {"resourceVersion": str(position)}
        if offset + limit < len(chosen) and request.query.get("limit"):
            self._snapshots[str(position)] = (position, chosen)
            meta |= {"continue": f"{position}:{offset + limit}"}
        items = chosen[offset : offset + limit] if request.query.get("limit") else chosen
        kind = KINDS[collection.rpartition("/")[2]]
        body = msgspec.json.encode({"kind": f"{kind}List", "metadata": meta, "items": items or None})
        if self.faults.n_cut_lists:
            self.faults.n_cut_lists -= 1
            return await cut(request, body)
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, collection: str) -> web.StreamResponse:
        position = int(request.query["resourceVersion"])
        lags = self.faults.n_lagging > 0
        self.faults.n_lagging -= lags
        if position > self.position or lags:
            return status(504, "Timeout", "Too large resource version", retryAfterSeconds=1)
        expired = position < self.forgotten
        if expired and self.faults.expired_by == "http":
            return status(410, "Expired", f"too old resource version: {position}")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if expired:
            await response.write(line("ERROR", status_body(410, "Expired", "too old resource version")))
            return response
        kind = KINDS[collection.rpartition("/")[2]]
        watching = Watching(self, request, response, collection, kind, position)
        self._watches.add(watching)
        try:
            await asyncio.wait_for(
                watching.run(), min(float(request.query["timeoutSeconds"]), self.max_watch_s)
            )
        except TimeoutError:
            await watching.last_bookmark()
        finally:
            self._watches.discard(watching)
        return response

    def sends_nothing(self, request: web.Request) -> bool:
        """Return whether a watch gets nothing."""
        return self.faults.stalled or self.is_silent(request)

    def is_silent(self, request: web.Request) -> bool:
        """Return whether the connection is stalled."""
        return request.transport in self._dead

    @property
    def changed(self) -> asyncio.Event:
        """Event that the next change sets."""
        return self._changed


def _verb(request: web.Request, name: str | None) -> str:
    if request.query.get("watch") == "true":
        return "watch"
    if request.method == "GET":
        return "list" if name is None else "get"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]
