"""The key `kv_events` of SGLang's `/server_info`: where a server publishes its events and its load.

Source: SGLang 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from ...configs.address import HostPort, ZmqAddress
from ...configs.endpoints import RankAddresses
from ...events.errors import EventsError

MAX_RANKS = 1024
"""Most data-parallel ranks of one server."""

MAX_PAGE = 65_536
"""Largest believable page size in tokens."""

WILDCARDS = frozenset({"*", "0.0.0.0", "::", "[::]", ""})  # noqa: S104 - compared, not bound
"""Hosts that mean every interface of the server."""

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Text = Annotated[str, Meta(max_length=256)]


class AdvertisedError(EventsError):
    """An engine's description of its streams cannot be used."""


class _KvEvents(msgspec.Struct, frozen=True):
    publisher: _Text
    endpoint_port_base: _Port
    endpoint_host: _Text | None = None
    topic: _Text | None = None
    block_size: Annotated[int, Meta(ge=1, le=MAX_PAGE)] | None = None
    dp_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 1
    load_endpoint_port_base: _Port | None = None
    load_topic: _Text | None = None
    replay_endpoint_port_base: _Port | None = None


class _ServerInfo(msgspec.Struct, frozen=True):
    kv_events: _KvEvents | None = None


@dataclass(frozen=True, slots=True)
class Advertised:
    """Streams of one server.

    Attributes:
        ranks: events and replay of each data-parallel rank.
        loads: address of the load of each rank, empty if it publishes none.
        load_topic: topic of the load.
        topic: topic of the events.
        block_size: tokens per block, None if not told.
    """

    ranks: tuple[RankAddresses, ...]
    loads: tuple[str, ...]
    load_topic: str
    topic: str
    block_size: int | None


_decode = msgspec.json.Decoder(_ServerInfo).decode


def read_server_info(body: bytes, host: str) -> Advertised | None:
    """Return the streams of a server, None if it publishes none over ZMQ.

    Args:
        body: response of `/server_info`, JSON.
        host: name or address of the server as we know it, without brackets.
    Raises:
        AdvertisedError: the response is unreadable, or names another host: a server speaks only for itself.
    """
    try:
        info = _decode(body).kv_events
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AdvertisedError(f"kv_events of /server_info cannot be used: {error}") from None
    if info is None or info.publisher != "zmq":
        return None
    told = info.endpoint_host or ""
    if told not in WILDCARDS and told.strip("[]").lower() != host:
        raise AdvertisedError(
            f"kv_events of /server_info names host {told!r}, expected {host!r} or a wildcard; "
            "if that is right, write the address as `events` of the endpoint"
        )
    try:
        events = _addresses(host, info.endpoint_port_base, info.dp_size)
        replays = _addresses(host, info.replay_endpoint_port_base, info.dp_size)
        loads = _addresses(host, info.load_endpoint_port_base, info.dp_size)
    except ValueError as error:
        raise AdvertisedError(f"kv_events of /server_info: {error}") from None
    return Advertised(
        ranks=tuple(
            RankAddresses(rank, address, replays[rank] if replays else None)
            for rank, address in enumerate(events)
        ),
        loads=loads,
        load_topic=info.load_topic or "load",
        topic=info.topic or "",
        block_size=info.block_size,
    )


def _addresses(host: str, port: int | None, n_ranks: int) -> tuple[str, ...]:
    if port is None:
        return ()
    first = ZmqAddress.on(HostPort.at(host, port))
    return tuple(first.of_rank(rank) for rank in range(n_ranks))
