"""Ports that all workers share: the kernel spreads connections over the workers that listen."""

from __future__ import annotations

import socket

import msgspec

from ...api.acceptor import bind, listen
from ...configs.address import HostPort
from ...configs.listeners import ServerConfig

_SETTINGS = {"ext_proc": "server.extProc", "health": "server.health"}
"""Field -> configuration key of the listeners that workers share."""


class SharedPorts:
    """Ports that the parent binds for its workers without listening, so that no other process can take them.

    Args:
        server: addresses as configured; port 0 takes a free one.

    Raises:
        ListenError: an address is taken or not one of this machine's.
    """

    def __init__(self, server: ServerConfig) -> None:
        self._held: list[socket.socket] = []
        self._actual: dict[str, tuple[str, str]] = {}
        """Field -> address as configured, and with the actual port."""
        try:
            for field, setting in _SETTINGS.items():
                if text := getattr(server, field):
                    self._actual[field] = text, self._hold(setting, text)
        except BaseException:
            self.close()
            raise

    def applied(self, server: ServerConfig) -> ServerConfig:
        """Return the addresses with the actual ports; an address that differs from the one of the start stays."""
        actual = {
            field: address
            for field, (text, address) in self._actual.items()
            if getattr(server, field) == text
        }
        return msgspec.structs.replace(server, **actual)

    def close(self) -> None:
        """Free the ports."""
        for each in self._held:
            each.close()

    def _hold(self, setting: str, text: str) -> str:
        where = HostPort.parse(text, lowest_port=0)
        # raises if another process listens there, which a shared bind would not notice
        listen(setting, where.host, where.port).close()
        held = bind(setting, where.host, where.port, is_shared=True)
        self._held.append(held)
        return text if where.port else str(HostPort(where.host, held.getsockname()[1]))
