"""CurveZMQ keys of the mesh, derived from the secret that its replicas share.

Every replica derives the same two key pairs. The listening side has the one, the connecting side the other:

    HKDF-SHA256(secret, salt = "kvatlas mesh v1", info = "listens" or "connects", 32 bytes) = a Curve25519 secret key

So a peer without the secret can neither read nor be read: it does not know the key of the listener, which CurveZMQ never
sends in the clear, and the listener takes no connecting key but the derived one. Each connection has keys of its own
besides, so recorded traffic stays unreadable if the secret is lost later.

Source: RFC 5869 (HKDF), ZeroMQ RFC 26 (CurveZMQ).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import zmq
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from zmq.utils.z85 import encode

from ..errors import ReplicaError

MIN_SECRET_BYTES = 32
"""A recorded handshake lets nobody test guesses, but a live connection does."""

MAX_SECRET_BYTES = 4096
"""No secret is longer; a larger file was named by mistake."""

_SALT = b"kvatlas mesh v1"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CurveZMQ key pair, as text in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MeshKeys:
    """The key pairs of the two sides of a connection.

    Attributes:
        listening: of the socket that is connected to.
        connecting: of the socket that connects.
    """

    listening: KeyPair
    connecting: KeyPair


def load_mesh_keys(secret_file: str) -> MeshKeys:
    """Derive the keys from a file; white space around its content does not count.

    Raises:
        ReplicaError: the file cannot be read, or its content is no secret.
    """
    try:
        with Path(secret_file).open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise ReplicaError(
            f"replicas.mesh.secretFile: cannot read {secret_file!r}: {error.strerror}"
        ) from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ReplicaError(
            f"replicas.mesh.secretFile: {secret_file!r} has {len(secret)} bytes, expected {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES}; make one with: openssl rand -base64 32"
        )
    return mesh_keys(secret)


def mesh_keys(secret: bytes) -> MeshKeys:
    """Derive the keys from a secret."""
    return MeshKeys(_pair(secret, b"listens"), _pair(secret, b"connects"))


def _pair(secret: bytes, info: bytes) -> KeyPair:
    derived = HKDF(algorithm=SHA256(), length=32, salt=_SALT, info=info).derive(secret)
    key = encode(derived)
    return KeyPair(zmq.curve_public(key), key)
