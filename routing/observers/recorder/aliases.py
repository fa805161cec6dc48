"""Aliases of block keys in traces: equal for equal keys, and useless for testing a guessed prompt.

A block key is an unkeyed hash, so anyone with a text could search for it in a trace. Its alias is the first 53 bits of
its AES-256 encryption under a secret: more bits would not be exact in every JSON reader, and two of 10 million blocks
share an alias once in 180 traces. Each AES block is encrypted by itself, so no alias depends on its neighbours; that
takes a tenth of the time of a keyed BLAKE2b.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from pathlib import Path

from ...errors import RecorderError

MIN_SECRET_BYTES = 16
_SECRET_BYTES = 32
_DROPPED_BITS = 64 - 53


class BlockAliases:
    """Aliases under one secret.

    Args:
        secret: 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        # 6 MB that a process without a recorder does not need
        from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.algorithms import AES  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.modes import ECB  # noqa: PLC0415

        self._cipher = Cipher(AES(secret), ECB())  # noqa: S305 - single blocks need a keyed permutation

    def of(self, keys: array[int]) -> tuple[int, ...]:
        """Return one alias per key. Cost: O(keys), 0.1 us each."""
        padded = array("Q", bytes(16 * len(keys)))
        padded[::2] = keys
        encrypted = array("Q", self._cipher.encryptor().update(padded.tobytes()))
        return tuple(word >> _DROPPED_BITS for word in encrypted[::2])


def block_aliases(key_file: str) -> BlockAliases:
    """Return aliases under the secret in a file; without a file, under a random secret that is never shown.

    Raises:
        RecorderError: the file cannot be read, or is too short for a secret.
    """
    if not key_file:
        return BlockAliases(secrets.token_bytes(_SECRET_BYTES))
    try:
        secret = Path(key_file).read_bytes().strip()
    except OSError as error:
        raise RecorderError(f"recorder.keyFile: {key_file} cannot be read: {error.strerror}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise RecorderError(
            f"recorder.keyFile: {key_file} holds {len(secret)} bytes, want {MIN_SECRET_BYTES} or more; "
            "make one with openssl rand -hex 32"
        )
    return BlockAliases(hashlib.blake2b(secret, digest_size=_SECRET_BYTES).digest())
