"""Identity of a replica: its name, its life, and what it must have in common with its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

PROTOCOL = 1
"""Version of the messages between replicas. Replicas of different versions refuse each other's messages."""

MAX_NAME_BYTES = 200
"""Longest name of a replica, in UTF-8: longer than a pod's, and short enough for one byte of length with the life."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One replica among its siblings.

    Attributes:
        name: stable name, unique among the siblings, such as the pod's; with worker processes also their number.
        boot: number of this life, below 2**64 and above those of earlier lives, such as the nanoseconds of the clock at the
            start. If the clock was set back, siblings take the new life once the old one counts as silent.
        pool: name of the pool of endpoints; replicas of other pools are no siblings.
        keys: what makes block keys equal: the seed, and the version of their computation.
        version: of kvatlas, for people.
        protocol: version of the messages.
    """

    name: str
    boot: int
    pool: str
    keys: str
    version: str = ""
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) <= MAX_NAME_BYTES or "/" in self.name:
            raise ValueError(
                f"found name {self.name!r} of a replica, expected 1 to {MAX_NAME_BYTES} bytes without a slash"
            )

    @property
    def id(self) -> str:
        """Return name and life in one, such as `pod-0/00000000005f3a01`; other lives of the name have other ids."""
        return replica_id(self.name, self.boot)

    @property
    def pool_print(self) -> int:
        """Return the fingerprint of the pool, below 2**64."""
        return _fingerprint(self.pool)

    @property
    def keys_print(self) -> int:
        """Return the fingerprint of the block keys, below 2**64."""
        return _fingerprint(self.keys)


def replica_id(name: str, boot: int) -> str:
    """Return the id of one life of a replica."""
    return f"{name}/{boot:016x}"


def _fingerprint(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
