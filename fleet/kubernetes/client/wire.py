"""The API server's JSON that is common to all kinds, as typed data. Unknown fields are skipped.

Source: Kubernetes API concepts, "Efficient detection of changes"; apimachinery meta/v1 types.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from .errors import Failure, MalformedError

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError)


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what the API server sends: camelCase keys."""


class ObjectMeta(Wire, frozen=True):
    """What every object has."""

    name: str = ""
    """Unique in its namespace and kind; a bookmark has none."""
    uid: str = ""
    """Another one when an object is deleted and made again under its name."""
    resource_version: str = ""
    """Opaque position in the history of the collection."""


class AnyMeta(Protocol):
    """Metadata of some kind; each kind reads the fields that it needs."""

    @property
    def name(self) -> str:
        """As in `ObjectMeta`."""
        ...

    @property
    def resource_version(self) -> str:
        """As in `ObjectMeta`."""
        ...


class KubernetesObject(Protocol):
    """An object of some kind."""

    @property
    def metadata(self) -> AnyMeta:
        """Its metadata."""
        ...


class Named(Wire, frozen=True):
    """Any object, by its metadata alone."""

    metadata: ObjectMeta


class ListMeta(Wire, frozen=True):
    """Metadata of a page."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    """Token of the next page; empty on the last."""


class Page(Wire, frozen=True):
    """One page of a list."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None
    """Go writes an empty list as null."""


class WatchEvent(Wire, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusDetails(Wire, frozen=True):
    """Details of a failure."""

    retry_after_seconds: int = 0


class Status(Wire, frozen=True):
    """How the API server says that something failed."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None

    @property
    def failure(self) -> Failure:
        """The same as a failure."""
        wait_s = self.details.retry_after_seconds if self.details else 0
        expired = self.code == 410
        return Failure(
            "expired" if expired else "http_status",
            f"{self.code} {self.reason}: {self.message}",
            status=self.code,
            retry_after_s=float(wait_s) if wait_s > 0 else None,
        )


_PAGE = msgspec.json.Decoder(Page)
_EVENT = msgspec.json.Decoder(WatchEvent)
_STATUS = msgspec.json.Decoder(Status)
_NAMED = msgspec.json.Decoder(Named)


def read_page(body: bytes) -> Page:
    """A page of a list.

    Raises:
        MalformedError: not one, or without a position to watch from.
    """
    try:
        page = _PAGE.decode(body)
    except DECODE_ERRORS as error:
        raise MalformedError(f"the list cannot be read: {error}") from error
    if not page.metadata.resource_version:
        raise MalformedError("the list has no metadata.resourceVersion")
    return page


def read_event(line: bytes) -> WatchEvent:
    """A line of a watch.

    Raises:
        MalformedError: not one.
    """
    try:
        return _EVENT.decode(line)
    except DECODE_ERRORS as error:
        raise MalformedError(f"a line of the watch cannot be read: {error}") from error


def read_meta(raw: msgspec.Raw) -> ObjectMeta:
    """An object's metadata.

    Raises:
        MalformedError: it has none.
    """
    try:
        return _NAMED.decode(raw).metadata
    except DECODE_ERRORS as error:
        raise MalformedError(f"an object's metadata cannot be read: {error}") from error


def read_status(body: bytes | msgspec.Raw) -> Status | None:
    """What the server says went wrong; None when it says so in another form, or does not."""
    try:
        status = _STATUS.decode(body)
    except DECODE_ERRORS:
        return None
    return status if status.code else None
