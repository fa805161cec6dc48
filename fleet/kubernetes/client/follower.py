"""Task that keeps a copy of a collection up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ....events.line_limit import LineLimit
from .api_server import ApiServer
from .errors import Failure, RequestFailedError
from .list_watch import ListPage, ListWatch, Pause, Watch
from .wire import KubernetesObject

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubernetesObject)

ROUTINE = frozenset({"expired", "cut", "short"})
"""Failures that are part of normal operation; logged at debug level."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of objects.

    Attributes:
        path: path of the kind in a namespace.
        label_selector: labels that objects must have; empty for any.
        field_selector: fields that objects must have; empty for any.
    """

    path: str
    label_selector: str = ""
    field_selector: str = ""

    def query(self) -> dict[str, str]:
        """Return the parameters of every request for it."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: text for name, text in selectors.items() if text}


class Follower(Generic[T]):
    """Carries out the steps of a `ListWatch`.

    Args:
        server: the API server.
        collection: the collection to follow.
        copy: decides the steps, and receives the responses.
        on_change: called after responses that may have changed the copy; `copy.changed` has the names until it returns.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        server: ApiServer,
        collection: Collection,
        copy: ListWatch[T],
        *,
        on_change: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.copy = copy
        self._server, self._collection = server, collection
        self._listener, self._clock = on_change, clock
        self._warned, self._lines = False, LineLimit()
        self._steps_task: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        """Path of the collection."""
        return self._collection.path

    def follow(self, collection: Collection) -> None:
        """Follow another collection; the copy stays as it is until that one is listed."""
        if collection != self._collection:
            self._collection = collection
            self.copy.restart()
            if self._steps_task is not None:
                self._steps_task.cancel()  # a response for the former collection must not reach the copy

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            self._steps_task = asyncio.create_task(
                self._steps(), name=f"list and watch {self._collection.path}"
            )
            try:
                await asyncio.wait((self._steps_task,))
            finally:
                self._steps_task.cancel()
                await asyncio.wait((self._steps_task,))
            if not self._steps_task.cancelled():
                self._steps_task.result()  # it returns only because of a bug: raise it

    async def _steps(self) -> None:
        while True:
            match self.copy.step(self._clock()):
                case Pause(seconds):
                    if await self._server.pause(seconds):
                        self.copy.wake()
                case ListPage() as page:
                    await self._list(page)
                case Watch() as watch:
                    await self._watch(watch)

    async def _list(self, page: ListPage) -> None:
        query = self._collection.query()
        if page.limit is not None:
            query["limit"] = str(page.limit)
        if page.continue_from:
            query["continue"] = page.continue_from
        try:
            body = await self._server.get(self._collection.path, query)
        except RequestFailedError as error:
            self._failed(error.failure)
            return
        before = self.copy.problem
        self.copy.page(body, now=self._clock())
        self._note_other_than(before)
        self._on_change()

    async def _watch(self, watch: Watch) -> None:
        query = self._collection.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": watch.resource_version,
            "timeoutSeconds": str(watch.timeout_s),
        }
        try:
            ended = await self._server.watch(
                self._collection.path,
                query,
                deadline_s=watch.deadline_s,
                opened=self._opened,
                receive=self._receive,
            )
        except RequestFailedError as error:
            self._failed(error.failure)
            return
        if ended:
            self.copy.ended(now=self._clock())

    def _opened(self) -> None:
        self.copy.opened(now=self._clock())
        if self._warned:
            log.info("%s is followed again", self._collection.path)
        self._warned = False

    def _receive(self, piece: bytes) -> bool:
        before = self.copy.problem
        goes_on = self.copy.receive(piece, now=self._clock())
        self._note_other_than(before)
        self._on_change()
        return goes_on

    def _failed(self, failure: Failure) -> None:
        self._note(failure)
        self.copy.failed(failure, now=self._clock())
        self._on_change()

    def _note_other_than(self, before: Failure | None) -> None:
        """Log what the copy found in a response."""
        if (found := self.copy.problem) is not None and found is not before:
            self._note(found)

    def _note(self, failure: Failure) -> None:
        is_news = not self._warned and failure.reason not in ROUTINE
        # a server or proxy may accept each watch, and fail it at once
        more = self._lines.line(self._clock()) if is_news else None
        plural = self._collection.path.rpartition("/")[2]
        effect = (
            f"the last known {plural} stay in use" if self.copy.n_lists else f"{plural} are not known yet"
        )
        level = logging.DEBUG if more is None else logging.WARNING
        log.log(level, "%s: %s%s", effect, failure.message, more or "")
        self._warned = self._warned or more is not None

    def _on_change(self) -> None:
        self._listener()
        self.copy.forget_changes()
