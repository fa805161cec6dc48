"""Dialects of the endpoint picker protocol: the written proposal, and the reference implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from google.protobuf.struct_pb2 import Value

from ...routing.control_headers import CONTROL_HEADERS, DESTINATION_HEADER
from ...routing.router import Refusal, RefusalCode
from . import ext_proc_pb2 as pb
from .headers import field
from .messages import Message
from .replies import HeaderFields

_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = f"{DESTINATION_HEADER}-subset"

MAX_SUBSET = 10_000
"""Most addresses of a subset hint; more are not allowed to serve. Reading so many takes 20 ms."""

_NOT_ECHOED = CONTROL_HEADERS | {DESTINATION_HEADER, "content-length", "traceparent", "tracestate"}


class Dialect(Protocol):
    """A variant of the protocol.

    Attributes:
        collects_bodies: whether a response is returned whole at its end, if it is no event stream.
    """

    collects_bodies: bool

    def subset(self, metadata: pb.Metadata) -> frozenset[str] | None:
        """Return the addresses that the gateway allows; None if it names no subset. The empty set allows no endpoint."""
        ...

    def request_fields(self, headers: Message, body: bytes, *, rewritten: bool) -> HeaderFields:
        """Return headers to set, beside the destination, on a request that is forwarded with `body`."""
        ...

    def response_fields(self, headers: Message) -> HeaderFields:
        """Return headers to set on a response."""
        ...

    def refusal(self, refusal: Refusal, *, has_body: bool) -> Refusal:
        """Return a refusal as this dialect words it."""
        ...


class Proposal:
    """The written endpoint picker protocol."""

    collects_bodies = False

    def subset(self, metadata: pb.Metadata) -> frozenset[str] | None:
        """Return `ip:port`, or `ip` for every port of it; None for a value that is neither list nor string.

        Source: endpoint picker protocol, `envoy.lb.subset_hint`. The protocol has a list; Envoy's header_to_metadata
        filter writes a string.
        """
        hint = field(metadata.filter_metadata, _SUBSET_NAMESPACE, _SUBSET_KEY)
        if hint is None:
            return None
        match hint.WhichOneof("kind"):
            case "list_value":
                items = islice(hint.list_value.values, MAX_SUBSET)
                return frozenset(islice((each for item in items for each in _addresses(item)), MAX_SUBSET))
            case "string_value":
                return frozenset(_addresses(hint))
            case _:
                return None

    def request_fields(self, headers: Message, body: bytes, *, rewritten: bool) -> HeaderFields:  # noqa: ARG002
        """Return the length of a changed body. Without it, Envoy answers 500 to a BUFFERED one."""
        return (("content-length", b"%d" % len(body)),) if rewritten else ()

    def response_fields(self, headers: Message) -> HeaderFields:  # noqa: ARG002
        """Return no headers."""
        return ()

    def refusal(self, refusal: Refusal, *, has_body: bool) -> Refusal:  # noqa: ARG002
        """Return the refusal unchanged."""
        return refusal


class LlmD:
    """The behaviour of llm-d-router, for gateways and tests that depend on it (`--compat llm-d`)."""

    collects_bodies = True

    def subset(self, metadata: pb.Metadata) -> frozenset[str] | None:
        """Return the `ip` of each entry of a list; other values are ignored."""
        hint = field(metadata.filter_metadata, _SUBSET_NAMESPACE, _SUBSET_KEY)
        if hint is None or hint.WhichOneof("kind") != "list_value":
            return None
        return frozenset(_ip(item.string_value) for item in islice(hint.list_value.values, MAX_SUBSET))

    def request_fields(self, headers: Message, body: bytes, *, rewritten: bool) -> HeaderFields:  # noqa: ARG002
        """Return the length of the body, and every header of the request again."""
        return (("Content-Length", b"%d" % len(body)), *_echo(headers.header_map()))

    def response_fields(self, headers: Message) -> HeaderFields:
        """Return a marker, and every header of the response again."""
        return (("x-went-into-resp-headers", b"true"), *_echo(headers.header_map()))

    def refusal(self, refusal: Refusal, *, has_body: bool) -> Refusal:
        """Return an internal error for a request without body, if there are no endpoints."""
        if refusal.dropped_reason == "rejected-no-endpoints" and not has_body:
            return Refusal(RefusalCode.INTERNAL, "no pods available in datastore")
        return refusal


DIALECTS: Mapping[str, Callable[[], Dialect]] = {"none": Proposal, "llm-d": LlmD}
"""Value of `extProc.compat` -> the dialect."""


def _echo(headers: pb.HeaderMap) -> HeaderFields:
    """Return headers as they came, without repeated ones (setting would merge them) and empty ones (it would remove them)."""
    counts = Counter(header.key.lower() for header in headers.headers)
    return tuple(
        (name, value)
        for header in headers.headers
        if (value := header.raw_value or header.value.encode())
        and counts[name := header.key.lower()] == 1
        and name not in _NOT_ECHOED
    )


def _ip(address: str) -> str:
    """Return the `ip` of `ip:port`. The brackets of an IPv6 address with a port stay."""
    host, _, _ = address.strip().rpartition(":")
    return host if host and (":" not in host or host.endswith("]")) else address.strip()


def _addresses(value: Value) -> Iterator[str]:
    # Values of other kinds have an empty string_value, so they add nothing.
    parts = value.string_value.split(",", MAX_SUBSET)[:MAX_SUBSET]
    return (stripped for part in parts if (stripped := part.strip()))
