"""The state of a publisher's stream as a value, so that it survives restarts of this process."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .stamps import N_STAMPS

if TYPE_CHECKING:
    Stamps = array[float]
else:
    Stamps = array  # msgspec reads the annotation, and Python 3.11 cannot subscript array


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """State of one stream; the default is a stream that has received nothing.

    Attributes:
        epoch: lives of the publisher seen before this one.
        next_seq: sequence number after the last applied batch; None if no batch of this life was applied.
        stamps: time stamps (f64) of the latest applied batches, oldest first.
        newest_stamp: last believable time stamp.
        lost: whether some history of this life was not available.
        life: the publisher's own id of this life, empty if it sends none.
    """

    epoch: int = 0
    next_seq: int | None = None
    stamps: Stamps = field(default_factory=lambda: array("d"))
    newest_stamp: float = 0.0
    lost: bool = False
    life: bytes = b""

    def __post_init__(self) -> None:
        """Raise ValueError for numbers and time stamps that no stream can have."""
        if self.stamps.typecode != "d" or len(self.stamps) > min(self.next_seq or 0, N_STAMPS):
            raise ValueError(f"{len(self.stamps)} time stamps before batch {self.next_seq}")

    def before(self, seq: int) -> StreamPosition:
        """Return the position before batch `seq`, which comes after this one's first stamp or has none."""
        n_later = (self.next_seq or 0) - seq
        n_kept = max(0, len(self.stamps) - n_later)
        return replace(self, next_seq=seq, stamps=self.stamps[:n_kept])
