"""Reading what Envoy tells of a request: its headers and the endpoints it allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.struct_pb2 import Struct, Value

from . import ext_proc_pb2 as pb

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header, and key in dynamic metadata, that tells Envoy where the request goes."""

REQUEST_ID_HEADER = "x-request-id"

LB_NAMESPACE = "envoy.lb"
"""Dynamic metadata of load balancing: the destination goes out in it, the endpoint that served comes back."""

_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = "x-gateway-destination-endpoint-subset"
_SERVED_KEY = "x-gateway-destination-endpoint-served"
_ATTRIBUTES_NAMESPACE = "envoy.filters.http.ext_proc"
_UPSTREAM_ATTRIBUTE = "upstream.address"


def read_headers(headers: pb.HeaderMap) -> dict[str, str]:
    """Lower-case name -> value, the last of repeated ones.

    Envoy fills `raw_value`, other peers may fill `value`. Bytes that are not UTF-8 are replaced. A destination the
    client sent is left out: only the picker chooses.
    """
    read = {
        header.key.lower(): header.raw_value.decode("utf-8", "replace") or header.value
        for header in headers.headers
    }
    read.pop(DESTINATION_HEADER, None)
    return read


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether a response sends its tokens as they come."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def read_subset(metadata: pb.Metadata) -> frozenset[str] | None:
    """Addresses the gateway allows: `ip:port`, or `ip` for every port of it.

    Returns:
        None when the gateway names no subset: no namespace, no key, or a value that is neither list nor string.
        The empty set allows no endpoint.
    Source: endpoint picker protocol, `envoy.lb.subset_hint`; Envoy's header_to_metadata filter writes a string
    where the protocol has a list.
    """
    hint = _field(metadata.filter_metadata, _SUBSET_NAMESPACE, _SUBSET_KEY)
    if hint is None:
        return None
    match hint.WhichOneof("kind"):
        case "list_value":
            return frozenset(address for item in hint.list_value.values for address in _addresses(item))
        case "string_value":
            return frozenset(_addresses(hint))
        case _:
            return None


def read_served(message: pb.ProcessingRequest) -> str | None:
    """Address of the endpoint that served the request, None when the gateway does not tell.

    Source: the endpoint picker protocol has the gateway write it to metadata; Envoy itself does not, but tells the
    upstream's address where `response_attributes` asks for it.
    """
    served = _field(message.metadata_context.filter_metadata, LB_NAMESPACE, _SERVED_KEY)
    if served is None:
        served = _field(message.attributes, _ATTRIBUTES_NAMESPACE, _UPSTREAM_ATTRIBUTE)
    return served.string_value or None if served is not None else None


def _field(structs: Mapping[str, Struct], namespace: str, key: str) -> Value | None:
    # `in` before [], which would create what is missing.
    if namespace not in structs or key not in structs[namespace].fields:
        return None
    return structs[namespace].fields[key]


def _addresses(value: Value) -> Iterator[str]:
    # string_value of a value of another kind is empty, so that such a list element adds nothing.
    return (stripped for part in value.string_value.split(",") if (stripped := part.strip()))
