"""What is shown of this replica and its siblings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .identity import Identity
from .picks import Picks
from .sibling import Sibling
from .word import Word


class ReplicasView(Protocol):
    """This replica among its siblings, for REST, the dashboard and the doctor."""

    @property
    def identity(self) -> Identity:
        """This replica."""
        ...

    @property
    def transport(self) -> str:
        """Name of the transport, as `replicas.transport` has it; `ipc` between the workers of one pod."""
        ...

    @property
    def problem(self) -> str:
        """Why nobody, or not everybody, can be reached, and what to do; empty if there is no problem."""
        ...

    @property
    def word(self) -> Word:
        """What this replica says about its configuration."""
        ...

    @property
    def words(self) -> Mapping[str, Word]:
        """What its siblings say about theirs, by id."""
        ...

    @property
    def picks(self) -> Picks:
        """Concurrent picks of this replica and its siblings."""
        ...

    def siblings(self) -> Sequence[Sibling]:
        """Return what is known of the siblings, then of senders whose messages are refused."""
        ...
