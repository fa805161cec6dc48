"""A copy of one collection of the API server, as a state machine without I/O and clock.

`follower.py` carries out the steps and reports their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from .backoff import Backoff, Timing
from .errors import Failure, MalformedError
from .lines import Lines
from .wire import (
    DECODE_ERRORS,
    KubernetesObject,
    Page,
    WatchEvent,
    read_event,
    read_meta,
    read_page,
    read_status,
)

T = TypeVar("T", bound=KubernetesObject)

PAGE_SIZE = 500
"""Objects per page, as in client-go."""

MAX_OBJECTS = 100_000
"""Limit of objects in a copy; the largest clusters have 150,000 pods in all namespaces together."""

MAX_FRUITLESS = 3
"""Failed watches in a row without any event, after which the collection is listed again."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """Step: request a page of the list.

    Attributes:
        limit: most objects in the page; None for all.
        continue_from: token of the page; empty for the first.
    """

    limit: int | None
    continue_from: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Step: watch the changes after a position.

    Attributes:
        resource_version: the position.
        timeout_s: time after which the server should end the watch.
        deadline_s: time after which the client ends it.
    """

    resource_version: str
    timeout_s: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait."""

    seconds: float


Step = ListPage | Watch | Pause


class ListWatch(Generic[T]):
    """A copy of one collection, kept up to date.

    Only a complete list replaces the copy. It stays while the server does not respond, and the next list removes objects
    whose deletion was missed.

    Args:
        kind: type of the objects.
        timing: durations of retries and watches.
        rng: uniform in [0, 1).
    """

    def __init__(self, kind: type[T], *, timing: Timing, rng: Callable[[], float]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._timing, self._rng = timing, rng
        self._backoff = Backoff(timing, rng)
        self._objects: dict[str, T] = {}
        self._changed: set[str] = set()
        self.synced = False
        """Whether the collection has been listed since the start or the last `restart`."""
        self.problem: Failure | None = None
        """Why the copy may be out of date; None while a watch runs."""
        self.n_lists = 0
        """Lists completed."""
        self.n_rejected = 0
        """Objects that could not be decoded; the last good version of each stays."""
        self.n_failures: Counter[str] = Counter()
        """`Failure.reason` -> failures."""
        self._wait_until = 0.0
        self._missing_since: float | None = None
        self._whole = False
        self._opened_at: float | None = None
        self._start_list()

    @property
    def objects(self) -> Mapping[str, T]:
        """The objects by name; a live view."""
        return MappingProxyType(self._objects)

    @property
    def changed(self) -> Collection[str]:
        """Names of objects added, changed or removed since the last `forget_changes`."""
        return self._changed

    def forget_changes(self) -> None:
        """Empty `changed`, because they were handled."""
        self._changed = set()

    def restart(self) -> None:
        """List the collection again at once, because the selector or path has changed."""
        self._backoff.reset()
        self._wait_until = 0.0
        self.synced = False
        self._start_list()

    def step(self, now: float) -> Step:
        """Return the next step; report its result by `page`, `opened`, `receive`, `ended` or `failed`."""
        if now < self._wait_until:
            return Pause(self._wait_until - now)
        if self._position:
            timeout_s = round(self._timing.watch_s * (1 + self._rng()))
            return Watch(self._position, timeout_s, timeout_s + self._timing.slack_s)
        return ListPage(None if self._whole else PAGE_SIZE, self._continue_from)

    def page(self, body: bytes, *, now: float) -> None:
        """Take a page of the list."""
        try:
            self._take_page(read_page(body))
        except MalformedError as error:
            self.failed(Failure("malformed", str(error)), now=now)

    def opened(self, *, now: float) -> None:
        """Note that the server accepted the watch."""
        self._lines = Lines()
        self._opened_at = now
        self._fruitful = False
        self.problem = None

    def receive(self, data: bytes, *, now: float) -> bool:
        """Take bytes of the watch; return False if the watch must end."""
        try:
            for line in self._lines.feed(data):
                failure = self._take_line(line)
                if failure is not None:
                    self.failed(failure, now=now)
                    return False
        except MalformedError as error:
            self.failed(Failure("malformed", str(error)), now=now)
            return False
        return True

    def ended(self, *, now: float) -> None:
        """Handle the end of a watch that the server closed."""
        lived_s = 0.0 if self._opened_at is None else now - self._opened_at
        if self._lines.inside:
            self.failed(Failure("cut", "the watch ended inside a line"), now=now)
        elif lived_s < self._timing.short_watch_s:
            self.failed(Failure("short", f"the server closed the watch after {lived_s:.1f} s"), now=now)
        else:
            self._note_life(now)
            self._n_fruitless = 0

    def failed(self, failure: Failure, *, now: float) -> None:
        """Handle a failed request or a broken watch."""
        self.problem = failure
        self.n_failures[failure.reason] += 1
        self._note_life(now)
        if self._position:
            self._n_fruitless += 1
            if failure.status in (404, 410) or self._n_fruitless >= MAX_FRUITLESS:
                self._start_list()
        else:
            # a page token can expire during a long list; a list in one page cannot
            self._whole = failure.status == 410 and bool(self._continue_from)
            self._note_missing(failure, now)
            self._start_list()
        self._wait_until = now + self._backoff.failed(failure)

    def wake(self) -> None:
        """Retry now, because the server answers again; only once in a row of failures."""
        if self._backoff.wake():
            self._wait_until = 0.0

    def _start_list(self) -> None:
        self._position = ""
        self._continue_from = ""
        self._listed: dict[str, T] = {}
        self._lines = Lines()
        self._opened_at = None
        self._fruitful = False
        self._n_fruitless = 0

    def _note_life(self, now: float) -> None:
        """Reset the backoff after a watch that went well."""
        if self._opened_at is None:
            return
        if self._fruitful or now - self._opened_at >= self._timing.healthy_s:
            self._backoff.reset()
        if self._fruitful:
            self._n_fruitless = 0
        self._opened_at = None

    def _note_missing(self, failure: Failure, now: float) -> None:
        if failure.status != 404 or failure.of_proxy:
            self._missing_since = None
            return
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= self._timing.missing_s:
            self._replace({})

    def _take_page(self, page: Page) -> None:
        for raw in page.items or ():
            found = self._read(raw)
            if found is not None:
                self._listed[found.metadata.name] = found
        if len(self._listed) > MAX_OBJECTS:
            raise MalformedError(f"the list has more than {MAX_OBJECTS} objects")
        if page.metadata.continue_:
            if page.metadata.continue_ == self._continue_from:
                raise MalformedError("the list repeats a page token")
            self._continue_from = page.metadata.continue_
            return
        self._replace(self._listed)
        self._start_list()
        self._position = page.metadata.resource_version
        self._missing_since, self._whole = None, False
        self.n_lists += 1
        self.synced = True

    def _replace(self, objects: dict[str, T]) -> None:
        before, self._objects = self._objects, objects
        self._changed.update(name for name in before if name not in objects)
        self._changed.update(name for name, each in objects.items() if before.get(name) != each)

    def _read(self, raw: msgspec.Raw) -> T | None:
        """Decode an object; if that fails, return its last known version, None if there is none."""
        try:
            found = self._decoder.decode(raw)
        except DECODE_ERRORS:
            self.n_rejected += 1
            return self._objects.get(read_meta(raw).name)
        if not found.metadata.name:
            raise MalformedError("an object has no metadata.name")
        return found

    def _take_line(self, line: bytes) -> Failure | None:
        """Apply a line of the watch; return the failure if the line reports one."""
        event = read_event(line)
        if event.type == "ERROR":
            status = read_status(event.object)
            return (
                status.failure if status else Failure("malformed", "the watch ended with an unreadable error")
            )
        position = self._take_object(event)
        if position:
            self._position = position
        self._fruitful = True
        return None

    def _take_object(self, event: WatchEvent) -> str:
        """Apply an event; return its position, empty if it has none."""
        if event.type in ("ADDED", "MODIFIED"):
            found = self._read(event.object)
            if found is not None and found is not self._objects.get(found.metadata.name):
                self._objects[found.metadata.name] = found
                self._changed.add(found.metadata.name)
                return found.metadata.resource_version
        meta = read_meta(event.object)
        if event.type == "DELETED" and self._objects.pop(meta.name, None) is not None:
            self._changed.add(meta.name)
        return meta.resource_version  # BOOKMARK, and types of later servers, have nothing else
