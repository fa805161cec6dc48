"""Keys of dictionaries for engine hashes.

An engine chooses its hashes, and Python finds an integer in a dictionary by its value: chosen ones collide. Bytes are
found by a hash with a secret of the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from sys import byteorder

from ..events.model import EngineHash


def hash_key(engine_hash: EngineHash) -> bytes:
    """Return the dictionary key of an engine hash."""
    return engine_hash.to_bytes(8, byteorder)


def hash_of(key: bytes) -> EngineHash:
    """Return the engine hash of a dictionary key."""
    return EngineHash(int.from_bytes(key, byteorder))


def hash_column(keys: Iterable[bytes]) -> array[int]:
    """Return the engine hashes of dictionary keys as `array('Q')`."""
    return array("Q", b"".join(keys))
