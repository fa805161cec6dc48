"""A copy of one collection of the API server: pages and watch lines in, the next step out.

No sockets and no clock: `follower.py` does what `step` says and tells how it went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from .backoff import Backoff, Timing
from .errors import Failure, MalformedError
from .lines import Lines
from .wire import DECODE_ERRORS, KubernetesObject, Page, read_event, read_meta, read_page, read_status

T = TypeVar("T", bound=KubernetesObject)

PAGE_SIZE = 500
"""Objects a page, as client-go asks for."""

MAX_OBJECTS = 100_000
"""Objects kept; the largest clusters have 150,000 pods in all their namespaces together."""

MAX_FRUITLESS = 3
"""Watches in a row that broke without bringing anything, before the collection is listed anew."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """Step: ask for a page of the list.

    Attributes:
        limit: objects wanted at most, None for all.
        continue_from: token of the page, empty for the first.
    """

    limit: int | None
    continue_from: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Step: ask for what changes from a position on.

    Attributes:
        resource_version: the position.
        timeout_s: when the server shall end the watch.
        deadline_s: when to give up on a server that has not ended it.
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

    The copy is replaced only by a whole list, so what was deleted unseen goes with the next one, and stays as it was
    while the server cannot be asked.

    Args:
        kind: the type of its objects.
        timing: how often the server is asked.
        rng: uniform in [0, 1).
    """

    def __init__(self, kind: type[T], *, timing: Timing, rng: Callable[[], float]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._timing, self._rng = timing, rng
        self._backoff = Backoff(timing, rng)
        self._objects: dict[str, T] = {}
        self.synced = False
        """Whether the collection was ever listed as it is asked for."""
        self.problem: Failure | None = None
        """What keeps the copy from being up to date; None while a watch runs."""
        self.n_lists = 0
        """Lists completed."""
        self.n_rejected = 0
        """Objects that could not be read; what was known of each stays."""
        self.n_failures: Counter[str] = Counter()
        """`Failure.reason` -> failures."""
        self._wait_until = 0.0
        self._missing_since: float | None = None
        self._whole = False
        self._opened_at: float | None = None
        self._start_list()

    @property
    def objects(self) -> Mapping[str, T]:
        """The copy, by name."""
        return MappingProxyType(self._objects)

    def restart(self) -> None:
        """The collection is asked for in another way, such as by another selector: list it anew, at once."""
        self._backoff.reset()
        self._wait_until = 0.0
        self.synced = False
        self._start_list()

    def step(self, now: float) -> Step:
        """What to do next; `page`, `opened` and `receive`, `ended` or `failed` tell how it went."""
        if now < self._wait_until:
            return Pause(self._wait_until - now)
        if self._position:
            timeout_s = round(self._timing.watch_s * (1 + self._rng()))
            return Watch(self._position, timeout_s, timeout_s + self._timing.slack_s)
        return ListPage(None if self._whole else PAGE_SIZE, self._continue_from)

    def page(self, body: bytes, *, now: float) -> None:
        """A page came."""
        try:
            self._take_page(read_page(body))
        except MalformedError as error:
            self.failed(Failure("malformed", str(error)), now=now)

    def opened(self, *, now: float) -> None:
        """The watch was accepted."""
        self._lines = Lines()
        self._opened_at = now
        self._fruitful = False
        self.problem = None

    def receive(self, data: bytes, *, now: float) -> bool:
        """Bytes of the watch came; False when the watch is of no more use."""
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
        """The server closed the watch."""
        lived_s = 0.0 if self._opened_at is None else now - self._opened_at
        if self._lines.inside:
            self.failed(Failure("cut", "the watch ended inside a line"), now=now)
        elif lived_s < self._timing.short_watch_s:
            self.failed(Failure("short", f"the server closed the watch after {lived_s:.1f} s"), now=now)
        else:
            self._note_life(now)
            self._n_fruitless = 0

    def failed(self, failure: Failure, *, now: float) -> None:
        """A request failed, or a watch broke."""
        self.problem = failure
        self.n_failures[failure.reason] += 1
        self._note_life(now)
        if self._position:
            self._n_fruitless += 1
            if failure.status in (404, 410) or self._n_fruitless >= MAX_FRUITLESS:
                self._start_list()
        else:
            # a list that is read page by page can outlive its token, one in one go cannot
            self._whole = failure.status == 410 and bool(self._continue_from)
            self._note_missing(failure, now)
            self._start_list()
        self._wait_until = now + self._backoff.failed(failure.retry_after_s)

    def _start_list(self) -> None:
        self._position = ""
        self._continue_from = ""
        self._listed: dict[str, T] = {}
        self._lines = Lines()
        self._opened_at = None
        self._fruitful = False
        self._n_fruitless = 0

    def _note_life(self, now: float) -> None:
        """A watch is over; whether it went well decides how soon the next one may come."""
        if self._opened_at is None:
            return
        if self._fruitful or now - self._opened_at >= self._timing.healthy_s:
            self._backoff.reset()
        if self._fruitful:
            self._n_fruitless = 0
        self._opened_at = None

    def _note_missing(self, failure: Failure, now: float) -> None:
        if failure.status != 404:
            self._missing_since = None
            return
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= self._timing.missing_s:
            self._objects = {}

    def _take_page(self, page: Page) -> None:
        for raw in page.items or ():
            found = self._read(raw)
            if found is not None:
                self._listed[found.metadata.name] = found
        if len(self._listed) > MAX_OBJECTS:
            raise MalformedError(f"the list has more than {MAX_OBJECTS} objects")
        if page.metadata.continue_:
            if page.metadata.continue_ == self._continue_from:
                raise MalformedError("the list goes in circles")
            self._continue_from = page.metadata.continue_
            return
        self._objects = self._listed
        self._start_list()
        self._position = page.metadata.resource_version
        self._missing_since, self._whole = None, False
        self.n_lists += 1
        self.synced = True

    def _read(self, raw: msgspec.Raw) -> T | None:
        """The object; what was known of it where it cannot be read, None where nothing was."""
        try:
            found = self._decoder.decode(raw)
        except DECODE_ERRORS:
            self.n_rejected += 1
            return self._objects.get(read_meta(raw).name)
        if not found.metadata.name:
            raise MalformedError("an object has no metadata.name")
        return found

    def _take_line(self, line: bytes) -> Failure | None:
        """What the line says, done; a failure when it says one."""
        event = read_event(line)
        if event.type == "ERROR":
            status = read_status(event.object)
            return (
                status.failure if status else Failure("malformed", "the watch ended with an unreadable error")
            )
        meta = read_meta(event.object)
        match event.type:
            case "ADDED" | "MODIFIED":
                found = self._read(event.object)
                if found is not None:
                    self._objects[found.metadata.name] = found
            case "DELETED":
                self._objects.pop(meta.name, None)
            case _:
                pass  # BOOKMARK, and what later servers may add: only the position counts
        if meta.resource_version:
            self._position = meta.resource_version
        self._fruitful = True
        return None
