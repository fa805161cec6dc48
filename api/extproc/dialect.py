"""Where endpoint pickers differ: the written protocol, and what the reference picker does instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from google.protobuf.struct_pb2 import Value

from ...routing.control_headers import CONTROL_HEADERS, DESTINATION_HEADER
from ...routing.router import Refusal, RefusalCode
from . import ext_proc_pb2 as pb
from .headers import field
from .replies import HeaderFields

_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = f"{DESTINATION_HEADER}-subset"

_NOT_ECHOED = CONTROL_HEADERS | {DESTINATION_HEADER, "content-length", "traceparent", "tracestate"}


class Dialect(Protocol):
    """One way to speak the protocol.

    Attributes:
        collects_bodies: whether a response that is no event stream is given back whole, at its end.
    """

    collects_bodies: bool

    def subset(self, metadata: pb.Metadata) -> frozenset[str] | None:
        """Addresses the gateway allows; None when it names no subset, and the empty set allows no endpoint."""
        ...

    def request_fields(self, headers: pb.HeaderMap, body: bytes, *, rewritten: bool) -> HeaderFields:
        """Headers to set beside the destination on a request with a body, which goes on as `body`."""
        ...

    def response_fields(self, headers: pb.HeaderMap) -> HeaderFields:
        """Headers to set on a response."""
        ...

    def refusal(self, refusal: Refusal, *, has_body: bool) -> Refusal:
        """How a refusal reads."""
        ...


class Proposal:
    """The written endpoint picker protocol; what it leaves open is left alone."""

    collects_bodies = False

    def subset(self, metadata: pb.Metadata) -> frozenset[str] | None:
        """`ip:port`, or `ip` for every port of it; None for a value that is neither list nor string.

        Source: endpoint picker protocol, `envoy.lb.subset_hint`; Envoy's header_to_metadata filter writes a string
        where the protocol has a list.
        """
        hint = field(metadata.filter_metadata, _SUBSET_NAMESPACE, _SUBSET_KEY)
        if hint is None:
            return None
        match hint.WhichOneof("kind"):
            case "list_value":
                return frozenset(address for item in hint.list_value.values for address in _addresses(item))
            case "string_value":
                return frozenset(_addresses(hint))
            case _:
                return None

    def request_fields(self, headers: pb.HeaderMap, body: bytes, *, rewritten: bool) -> HeaderFields:  # noqa: ARG002
        """The length of a changed body, without which Envoy answers 500 to a BUFFERED one."""
        return (("content-length", b"%d" % len(body)),) if rewritten else ()

    def response_fields(self, headers: pb.HeaderMap) -> HeaderFields:  # noqa: ARG002
        """None."""
        return ()

    def refusal(self, refusal: Refusal, *, has_body: bool) -> Refusal:  # noqa: ARG002
        """As it is."""
        return refusal


class LlmD:
    """What llm-d-router does, for gateways and tests that rest on it (`--compat llm-d`)."""

    collects_bodies = True

    def subset(self, metadata: pb.Metadata) -> frozenset[str] | None:
        """Only lists count, and only the `ip` of each entry."""
        hint = field(metadata.filter_metadata, _SUBSET_NAMESPACE, _SUBSET_KEY)
        if hint is None or hint.WhichOneof("kind") != "list_value":
            return None
        return frozenset(_ip(item.string_value) for item in hint.list_value.values)

    def request_fields(self, headers: pb.HeaderMap, body: bytes, *, rewritten: bool) -> HeaderFields:  # noqa: ARG002
        """The length of the body, and every header of the request again."""
        return (("Content-Length", b"%d" % len(body)), *_echo(headers))

    def response_fields(self, headers: pb.HeaderMap) -> HeaderFields:
        """A mark, and every header of the response again."""
        return (("x-went-into-resp-headers", b"true"), *_echo(headers))

    def refusal(self, refusal: Refusal, *, has_body: bool) -> Refusal:
        """Without endpoints a request without body is an internal error."""
        if refusal.dropped_reason == "rejected-no-endpoints" and not has_body:
            return Refusal(RefusalCode.INTERNAL, "no pods available in datastore")
        return refusal


DIALECTS: Mapping[str, Callable[[], Dialect]] = {"none": Proposal, "llm-d": LlmD}
"""Value of `extProc.compat` -> the dialect."""


def _echo(headers: pb.HeaderMap) -> HeaderFields:
    """Headers as they came, but for repeated ones, which setting would make one of, and empty ones, which it would remove."""
    counts = Counter(header.key.lower() for header in headers.headers)
    return tuple(
        (name, value)
        for header in headers.headers
        if (value := header.raw_value or header.value.encode())
        and counts[name := header.key.lower()] == 1
        and name not in _NOT_ECHOED
    )


def _ip(address: str) -> str:
    """`ip` of `ip:port`; an IPv6 address with a port has brackets, which stay."""
    host, _, _ = address.strip().rpartition(":")
    return host if host and (":" not in host or host.endswith("]")) else address.strip()


def _addresses(value: Value) -> Iterator[str]:
    # string_value of a value of another kind is empty, so that such a list element adds nothing.
    return (stripped for part in value.string_value.split(",") if (stripped := part.strip()))
