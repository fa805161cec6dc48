"""Headers of a request, and the endpoint that served it, as Envoy reports them."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.struct_pb2 import Struct, Value

from ...routing.control_headers import (
    CONTROL_HEADERS,
    DESTINATION_HEADER,
    MAX_ID_CHARS,
    REQUEST_ID_HEADER,
)
from .messages import Message

LB_NAMESPACE = "envoy.lb"
"""Dynamic metadata of load balancing: carries the destination out, and the endpoint that served back."""

_ESSENTIAL = CONTROL_HEADERS | {":path", "prefer", "traceparent", "epp-profile", REQUEST_ID_HEADER}

_SERVED_KEY = f"{DESTINATION_HEADER}-served"
_ATTRIBUTES_NAMESPACE = "envoy.filters.http.ext_proc"
_UPSTREAM_ATTRIBUTE = "upstream.address"


def essential(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that routing itself reads, without long values; those that only plugins read are left out."""
    return {
        name: value
        for name, value in headers.items()
        if name in _ESSENTIAL and (len(value) <= MAX_ID_CHARS or name == ":path")
    }


def read_served(message: Message) -> str | None:
    """Return the address of the endpoint that served the request, None if the gateway does not report it.

    Source: by the endpoint picker protocol, the gateway writes it to metadata. Envoy itself does not, but sends the
    upstream's address if `response_attributes` names it.
    """
    decoded = message.decoded
    if decoded is None:
        return None
    served = None
    if message.metadata is not None:
        served = field(message.metadata.filter_metadata, LB_NAMESPACE, _SERVED_KEY)
    if served is None:
        served = field(decoded.attributes, _ATTRIBUTES_NAMESPACE, _UPSTREAM_ATTRIBUTE)
    return served.string_value[:MAX_ID_CHARS] or None if served is not None else None


def field(structs: Mapping[str, Struct], namespace: str, key: str) -> Value | None:
    """Return one value of dynamic metadata or attributes, None if it is absent."""
    # Test with `in` first: [] would create a missing entry.
    if namespace not in structs or key not in structs[namespace].fields:
        return None
    return structs[namespace].fields[key]


def is_websocket(headers: Mapping[str, str]) -> bool:
    """Return whether a request opens a WebSocket: its client sends nothing more before the server has accepted.

    Source: Envoy shows upgrades of HTTP/2 and HTTP/3 with the headers of HTTP/1.1 too.
    """
    return headers.get("upgrade", "").lower() == "websocket"
