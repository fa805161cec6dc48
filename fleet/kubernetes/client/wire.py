"""JSON of the API server that all kinds share, as typed data. Unknown fields are skipped.

Source: Kubernetes API concepts, "Efficient detection of changes"; apimachinery meta/v1 types.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from .errors import Failure, MalformedError

MAX_WAIT_S = 2**31 - 1
"""Longest wait that a Status can ask for; the field is an int32, and a number far beyond has no float."""

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that decoding raises for bytes from outside; the last for values that are nested too deeply."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of structs with camelCase keys."""


class ObjectMeta(Wire, frozen=True):
    """Metadata of every object."""

    name: str = ""
    """Unique in its namespace and kind; a bookmark has none."""
    uid: str = ""
    """Unique; changes if an object is deleted and created again under its name."""
    resource_version: str = ""
    """Opaque position in the history of the collection."""


class AnyMeta(Protocol):
    """Metadata of any kind; each kind decodes the fields that it needs."""

    @property
    def name(self) -> str:
        """As in `ObjectMeta`."""
        ...

    @property
    def resource_version(self) -> str:
        """As in `ObjectMeta`."""
        ...


class KubernetesObject(Protocol):
    """An object of any kind."""

    @property
    def metadata(self) -> AnyMeta:
        """Its metadata."""
        ...


class GroupList(Wire, frozen=True):
    """The list of API groups."""

    kind: Literal["APIGroupList"]
    """Tells it from other JSON."""


class Named(Wire, frozen=True):
    """Metadata of any object."""

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
    """None for an empty list, which Go writes as null."""


class WatchEvent(Wire, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusDetails(Wire, frozen=True):
    """Details of a failure."""

    retry_after_seconds: int = 0


class Status(Wire, frozen=True):
    """Error response of the API server."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None

    @property
    def failure(self) -> Failure:
        """The error as a `Failure`."""
        wait_s = self.details.retry_after_seconds if self.details else 0
        expired = self.code == 410
        return Failure(
            "expired" if expired else "http_status",
            f"{self.code} {self.reason}: {self.message}",
            status=self.code,
            retry_after_s=float(min(wait_s, MAX_WAIT_S)) if wait_s > 0 else None,
        )


_PAGE = msgspec.json.Decoder(Page)
_EVENT = msgspec.json.Decoder(WatchEvent)
_GROUP_LIST = msgspec.json.Decoder(GroupList)
_STATUS = msgspec.json.Decoder(Status)
_NAMED = msgspec.json.Decoder(Named)


def read_page(body: bytes) -> Page:
    """Decode a page of a list.

    Raises:
        MalformedError: not a page, or without a position to watch from.
    """
    try:
        page = _PAGE.decode(body)
    except DECODE_ERRORS as error:
        raise MalformedError(f"the list cannot be read: {error}") from error
    if not page.metadata.resource_version:
        raise MalformedError("the list has no metadata.resourceVersion")
    return page


def read_event(line: bytes) -> WatchEvent:
    """Decode a line of a watch.

    Raises:
        MalformedError: not a watch event.
    """
    try:
        return _EVENT.decode(line)
    except DECODE_ERRORS as error:
        raise MalformedError(f"a line of the watch cannot be read: {error}") from error


def read_meta(raw: msgspec.Raw) -> ObjectMeta:
    """Decode the metadata of an object.

    Raises:
        MalformedError: the object has none.
    """
    try:
        return _NAMED.decode(raw).metadata
    except DECODE_ERRORS as error:
        raise MalformedError(f"an object's metadata cannot be read: {error}") from error


def read_status(body: bytes | msgspec.Raw) -> Status | None:
    """Decode an error response, None if the body is something else."""
    try:
        status = _STATUS.decode(body)
    except DECODE_ERRORS:
        return None
    return status if status.code else None


def is_group_list(body: bytes) -> bool:
    """Return whether a response is the list of API groups."""
    try:
        _GROUP_LIST.decode(body)
    except DECODE_ERRORS:
        return False
    return True
