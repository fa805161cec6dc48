"""Connections to a Valkey or Redis server: which one of a set or a cluster, and with what password."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, cast

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError, ResponseError

from ...configs.address import HostPort
from ...configs.replicas import ValkeyConfig, ValkeyTlsConfig
from ..errors import PasswordError, ReplicaError, TlsFileError

TIMEOUT_S = 2.0
"""Longest wait for a connection, and for a reply. A server that is there replies in a millisecond.

The client's own `socket_timeout` is not used: it sends within `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
comes when the send has just ended, and all waits of a process that was frozen end at once.
"""

LOCATE_S = 1.0
"""Interval of asking which server of a set or a cluster is the one to use."""

MAX_PASSWORD_BYTES = 4096

UNREACHED = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError, ReplicaError)
"""Errors of a server that is away, refuses, or is no server."""


_Ask: TypeAlias = Callable[[], Awaitable[HostPort]]
"""Asks one server which one is to be used; raises as `ValkeyServer.locate`."""


class Credentials(CredentialProvider):
    """User and password, read for each connection from a file, or from the environment if no file is given."""

    def __init__(self, username: str, file: str, variable: str = "") -> None:
        self._username, self._file, self._variable = username, file, variable

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, after the user if there is one.

        Raises:
            PasswordError: the file cannot be read, or the variable is not set.
        """
        password = self._of_file() if self._file else os.environ.get(self._variable)
        if password is None:
            raise PasswordError(
                f"replicas.valkey.passwordEnv: the environment variable {self._variable!r} is not set"
            )
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the same; the file is short, and on the disk of this pod. Without this the library logs a warning each time."""
        return self.get_credentials()

    def _of_file(self) -> str:
        try:
            with Path(self._file).open("rb") as file:
                return file.read(MAX_PASSWORD_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PasswordError(f"cannot read the password in {self._file!r}: {_reason(error)}") from None


class ValkeyServer:
    """The server whose channels the replicas use.

    Args:
        config: addresses, TLS and passwords.
        channel: a channel; in a cluster its hash slot decides on the server.
    """

    def __init__(self, config: ValkeyConfig, *, channel: str) -> None:
        self._config, self._channel = config, channel
        self._known: tuple[HostPort, ...] = ()
        """Servers of the cluster as last reported, asked when those of the configuration are away."""
        self._first = 0
        """Number of the Sentinel, or the server of the cluster, that is asked first."""

    @property
    def may_move(self) -> bool:
        """Whether another server can become the one to use."""
        return not self._config.address

    async def locate(self) -> HostPort:
        """Return the server to use now.

        Raises:
            RedisError, OSError, TimeoutError, ReplicaError: nobody tells.
        """
        if self._config.address:
            return HostPort.parse(self._config.address)

        async def once(ask: _Ask) -> HostPort:
            return await ask()

        return await self._ask_any(once)

    async def moved(self, place: HostPort, told: Callable[[], None]) -> HostPort:
        """Return the server to use as soon as it is another one than `place`; ask each second over one connection.

        Args:
            place: the server in use.
            told: called each time that it is still the one to use.
        Raises:
            RedisError, OSError, TimeoutError, ReplicaError: nobody tells any more.
        """

        async def until_other(ask: _Ask) -> HostPort:
            while (found := await ask()) == place:
                told()
                await asyncio.sleep(LOCATE_S)
            return found

        return await self._ask_any(until_other)

    def failed(self) -> None:
        """Ask another Sentinel or server of the cluster first from now on: what the last one said may be out of date."""
        self._first += 1

    @asynccontextmanager
    async def connected(self, place: HostPort) -> AsyncGenerator[Connection]:
        """Connect to a server of the replicas."""
        config, given = self._config, None
        if config.password_file or config.password_env:
            given = Credentials(config.username, config.password_file, config.password_env)
        async with self._open(place, config.username, given, config.database) as connection:
            yield connection

    async def _ask_any(self, use: Callable[[_Ask], Awaitable[HostPort]]) -> HostPort:
        """Return what `use` finds with a Sentinel or server of the cluster, the first one with which it fails not."""
        config = self._config
        places = config.cluster or config.sentinel.addresses
        found = list(dict.fromkeys((*map(HostPort.parse, places), *self._known)))
        error: Exception = ReplicaError("no server is known")
        for number in range(self._first, self._first + len(found)):
            place = found[number % len(found)]
            try:
                async with self._asked(place) as ask:
                    return await use(ask)
            except UNREACHED as caught:
                error = caught
        raise error

    @asynccontextmanager
    async def _asked(self, place: HostPort) -> AsyncGenerator[_Ask]:
        """Connect to a Sentinel or server of the cluster, and yield what asks it for the server to use."""
        if self._config.cluster:
            async with self.connected(place) as connection:
                yield lambda: self._ask_cluster(connection, place)
            return
        sentinel, given = self._config.sentinel, None
        if sentinel.password_file:
            given = Credentials(sentinel.username, sentinel.password_file)
        async with self._open(place, sentinel.username, given, 0) as connection:
            yield lambda: self._ask_sentinel(connection, place)

    async def _ask_sentinel(self, connection: Connection, place: HostPort) -> HostPort:
        master = self._config.sentinel.master
        match await call(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", master):
            case [bytes(host), bytes(port)]:
                return _address(host, port, place)
            case _:
                raise ReplicaError(f"the Sentinel at {place} knows no set {master!r}")

    async def _ask_cluster(self, connection: Connection, place: HostPort) -> HostPort:
        reply = await call(connection, "CLUSTER", "SLOTS")
        slot, found, known = key_slot(self._channel.encode()), None, list[HostPort]()
        try:
            for first, last, *nodes in cast("Sequence[Sequence[Any]]", reply):
                if first <= slot <= last and nodes:
                    found = _node(nodes[0], place)
                for each in nodes:
                    with suppress(ReplicaError):  # one that is not needed now may have no address
                        known.append(_node(each, place))
        except (TypeError, ValueError):
            raise ReplicaError(f"the server at {place} describes its slots as {reply!r:.100}") from None
        self._known = tuple(dict.fromkeys(known))
        if found is None:
            raise ReplicaError(
                f"no server of the cluster at {place} has hash slot {slot} of {self._channel!r}"
            )
        return found

    @asynccontextmanager
    async def _open(
        self, place: HostPort, username: str, credentials: Credentials | None, database: int
    ) -> AsyncGenerator[Connection]:
        tls = self._config.tls
        options: dict[str, Any] = {
            "host": place.host,
            "port": place.port,
            "db": database,
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": TIMEOUT_S,
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        if credentials is not None:
            options["credential_provider"] = credentials
        elif username:
            options["username"] = username
        if tls.enabled:
            _check_files(tls)
            connection: Connection = SSLConnection(
                **options,
                ssl_ca_certs=tls.ca_file or None,
                ssl_certfile=tls.cert_file or None,
                ssl_keyfile=tls.key_file or None,
                ssl_check_hostname=tls.check_hostname,
            )
        else:
            connection = Connection(**options)
        try:
            with _reading():
                async with asyncio.timeout(TIMEOUT_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
            yield connection
        finally:
            await connection.disconnect(nowait=True)


_REPLICAS = (b"replica", b"slave")


async def call(connection: Connection, *command: str | bytes) -> Sequence[object]:
    """Send a command and return its reply if it is a list; any other is empty.

    Raises:
        RedisError, TimeoutError: it is an error, or none comes in time.
    """
    async with asyncio.timeout(TIMEOUT_S):
        await connection.send_command(*command)
    return await reply_of(connection)


async def check_role(connection: Connection, place: HostPort) -> None:
    """Check that what is published there reaches all that subscribe.

    Raises:
        ReplicaError: the server is a replica of another one; its primary does not get what is published there.
        RedisError, TimeoutError: no reply comes in time.
    """
    with suppress(ResponseError):  # of a proxy; a server needs no right for it
        found = await call(connection, "HELLO")
        pairs = zip(found[::2], found[1::2], strict=False)
        if any(name == b"role" and value in _REPLICAS for name, value in pairs):
            raise ReplicaError(
                f"{place} is a read-only replica, and what is published there does not reach its primary; name "
                "the primary in replicas.valkey.address, or the Sentinels of the set in replicas.valkey.sentinel"
            )


async def reply_of(connection: Connection) -> Sequence[object]:
    """Return the next reply if it is a list; any other is empty.

    Raises:
        RedisError, TimeoutError: it is an error, or none comes in time.
        ReplicaError: it is no reply.
    """
    with _reading():
        async with asyncio.timeout(TIMEOUT_S):
            reply = cast("object", await connection.read_response(disable_decoding=True))
    return cast("Sequence[object]", reply) if isinstance(reply, list) else ()


@contextmanager
def _reading() -> Generator[None]:
    """Raise what the client's library raises of bytes that are no reply as a ReplicaError."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise ReplicaError(f"it sent what is no reply of such a server: {error}") from None


def _check_files(tls: ValkeyTlsConfig) -> None:
    """Raise a TlsFileError that names the first file that cannot be read; the client's library names none."""
    files = (("caFile", tls.ca_file), ("certFile", tls.cert_file), ("keyFile", tls.key_file))
    for key, file in files:
        try:
            if file:
                Path(file).open("rb").close()
        except OSError as error:
            raise TlsFileError(f"replicas.valkey.tls.{key}: cannot read {file!r}: {_reason(error)}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"


def _node(node: Sequence[object], asked: HostPort) -> HostPort:
    """Return the address of a node in a reply of `CLUSTER SLOTS`; without a host it is that of the server that was asked.

    Raises:
        ReplicaError: it has none that can be connected to.
    """
    match node:
        case [bytes(host), int(port), *_] if host:
            return _address(host, port, asked)
        case [_, int(port), *_]:
            return _address(asked.host.encode(), port, asked)
        case _:
            raise ReplicaError(f"the server at {asked} describes a node as {node!r:.100}")


def _address(host: bytes, port: int | bytes, asked: HostPort) -> HostPort:
    """Return an address that the server or Sentinel at `asked` named."""
    try:
        return HostPort.at(host.decode(), int(port))
    except ValueError as error:  # such as the host "?" of a node that has no name
        text = f"{asked} names a server by an address that nobody can connect to: {error}; have that server announce one"
        raise ReplicaError(text) from None
