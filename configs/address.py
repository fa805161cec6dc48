"""Addresses in configuration files."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

_HOST_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:]+):(?P<port>[0-9]{1,5})")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_NUMBERS = re.compile(r"[0-9.]+")
MAX_PORT = 65535

MAX_IPC_BYTES = 107
"""Longest path of a Unix socket."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and a port.

    Attributes:
        host: name, IPv4 or IPv6 address in lower case, without brackets.
        port: 0 to 65535.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, lowest_port: int = 1) -> HostPort:
        """Parse `HOST:PORT`, with IPv6 hosts in brackets.

        Raises:
            ValueError: not of that form, or the port is below `lowest_port` or above 65535.
        """
        match = _HOST_PORT.fullmatch(text)
        host = _host(match["host"]) if match else None
        if match is None or host is None:
            raise ValueError(
                f"found {text!r}, expected HOST:PORT such as 10.0.0.1:8000 or [2001:db8::1]:8000"
            )
        port = int(match["port"])
        if not lowest_port <= port <= MAX_PORT:
            raise ValueError(
                f"found port {port} in {text!r}, expected a port from {lowest_port} to {MAX_PORT}"
            )
        return cls(host, port)

    @classmethod
    def at(cls, host: str, port: int) -> HostPort:
        """Return the address of a port on a host that was found elsewhere, such as on a pod.

        Raises:
            ValueError: the host is no name or IP address, or the port is not from 1 to 65535.
        """
        found = _host(f"[{host}]" if ":" in host else host)
        if found is None:
            raise ValueError(f"found host {host!r}, expected a name or an IP address")
        if not 1 <= port <= MAX_PORT:
            raise ValueError(f"found port {port} on host {host}, expected a port from 1 to {MAX_PORT}")
        return cls(found, port)

    @property
    def url_host(self) -> str:
        """`HOST` as written before a port: IPv6 in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        """Return `HOST:PORT`, with brackets around IPv6."""
        return f"{self.url_host}:{self.port}"


def _host(text: str) -> str | None:
    """Return the host in its normal form for comparison, None if it is invalid."""
    try:
        if text.startswith("["):
            return str(ipaddress.IPv6Address(text[1:-1]))
        if _NUMBERS.fullmatch(text):
            return str(ipaddress.IPv4Address(text))
    except ipaddress.AddressValueError:
        return None
    return text.lower() if _HOST_NAME.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class ZmqAddress:
    """A ZMQ address to connect to: `tcp` with a host and port, or `ipc` with a path.

    Attributes:
        text: as written.
        tcp: host and port, None for ipc.
    """

    text: str
    tcp: HostPort | None

    @classmethod
    def parse(cls, text: str) -> ZmqAddress:
        """Parse `tcp://HOST:PORT` or `ipc://PATH`.

        Raises:
            ValueError: `text` has neither form, or ZMQ does not accept it.
        """
        scheme, _, rest = text.partition("://")
        if scheme == "ipc" and rest:
            if len(rest.encode()) > MAX_IPC_BYTES:
                raise ValueError(f"found {text!r}, expected an ipc path of at most {MAX_IPC_BYTES} bytes")
            return cls(text, None)
        if scheme == "tcp" and not rest.startswith("_"):
            with suppress(ValueError):
                return cls(text, HostPort.parse(rest))
        raise ValueError(
            f"found {text!r}, expected tcp://HOST:PORT such as tcp://10.0.0.1:5557, or ipc://PATH"
        )

    @classmethod
    def on(cls, tcp: HostPort) -> ZmqAddress:
        """Return the tcp address of a host and port.

        Raises:
            ValueError: ZMQ does not take the host.
        """
        if tcp.host.startswith("_"):
            raise ValueError(f"found host {tcp.host!r}, expected one that begins with a letter or digit")
        return cls(f"tcp://{tcp}", tcp)

    def of_rank(self, rank: int) -> str:
        """Return the address of data-parallel rank `rank`, whose port is `rank` higher.

        Raises:
            ValueError: an ipc path has no port, or the port would be above 65535.
        """
        if rank == 0:
            return self.text
        if self.tcp is None:
            raise ValueError(
                f"{self.text!r} serves one data-parallel rank, since an ipc path has no port to add to"
            )
        if self.tcp.port + rank > MAX_PORT:
            raise ValueError(
                f"rank {rank} of {self.text!r} would be on port {self.tcp.port + rank}, above {MAX_PORT}"
            )
        return f"tcp://{HostPort(self.tcp.host, self.tcp.port + rank)}"


def check_bind_address(text: str) -> None:
    """Check that `text` is a ZMQ address to listen on; unlike one to connect to, it may have host `*` and port 0.

    Raises:
        ValueError: neither `tcp://HOST:PORT` with a local host or `*`, nor `ipc://PATH`.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "ipc" and rest:
        return
    if scheme == "tcp":
        with suppress(ValueError):
            HostPort.parse(f"127.0.0.1{rest[1:]}" if rest.startswith("*:") else rest, lowest_port=0)
            return
    raise ValueError(
        f"found {text!r}, expected tcp://*:5557 for every interface, tcp://HOST:PORT for one, or ipc://PATH"
    )


def check_metrics_url(text: str) -> None:
    """Check that `text` is a URL to scrape.

    Raises:
        ValueError: not an http or https URL with a host.
    """
    if _url(text) is None:
        raise ValueError(f"found {text!r}, expected a URL such as http://10.0.0.1:8000/metrics")


def check_base_url(text: str) -> None:
    """Check that `text` is a URL to which paths can be appended.

    Raises:
        ValueError: not an http or https URL with a host, or a URL with a query or fragment.
    """
    parts = _url(text)
    if parts is None or parts.query or parts.fragment:
        raise ValueError(f"found {text!r}, expected a URL such as http://10.0.0.1:8000")


def _url(text: str) -> SplitResult | None:
    """Return the parts of an http or https URL with a host; None for any other text."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a broken IPv6 host or a port that is not a number
        return None
    return parts if usable and not any(character.isspace() for character in text) else None
