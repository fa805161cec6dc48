"""A TLS client made of OpenSSL's C interface, for what Python's `ssl` has no function for."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Generator
from contextlib import contextmanager

UPDATE_REQUESTED = 1
"""The other side is to update its keys too, and says so."""

_POINTER, _INT, _BYTES = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS = {
    "TLS_client_method": (_POINTER,),
    "SSL_CTX_new": (_POINTER, _POINTER),
    "SSL_CTX_free": (None, _POINTER),
    "SSL_new": (_POINTER, _POINTER),
    "SSL_free": (None, _POINTER),
    "SSL_set_fd": (_INT, _POINTER, _INT),
    "SSL_connect": (_INT, _POINTER),
    "SSL_key_update": (_INT, _POINTER, _INT),
    "SSL_do_handshake": (_INT, _POINTER),
    "SSL_write": (_INT, _POINTER, _BYTES, _INT),
    "SSL_read": (_INT, _POINTER, _BYTES, _INT),
}


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libssl.so.3")
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class OpensslPeer:
    """One connection. Its methods block."""

    def __init__(self, library: ctypes.CDLL, ssl: int) -> None:
        self._library, self._ssl = library, ssl

    def update_keys(self) -> bool:
        """Send a KeyUpdate that requests one in return; returns False if the connection is over."""
        self._library.SSL_key_update(self._ssl, UPDATE_REQUESTED)
        return bool(self._library.SSL_do_handshake(self._ssl) == 1)

    def write(self, data: bytes) -> None:
        """Send data as one record."""
        assert self._library.SSL_write(self._ssl, data, len(data)) == len(data)

    def read(self, n: int) -> bytes:
        """Return at most `n` bytes; none at the end of the connection."""
        buffer = ctypes.create_string_buffer(n)
        n_read = self._library.SSL_read(self._ssl, buffer, n)
        return buffer.raw[: max(0, n_read)]


@contextmanager
def openssl_peer(port: int) -> Generator[OpensslPeer]:
    """Connect to a server, whose certificate is not verified."""
    library = _library()
    context = library.SSL_CTX_new(library.TLS_client_method())
    ssl = library.SSL_new(context)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        library.SSL_set_fd(ssl, connection.fileno())
        try:
            assert library.SSL_connect(ssl) == 1
            yield OpensslPeer(library, ssl)
        finally:
            library.SSL_free(ssl)
            library.SSL_CTX_free(context)
