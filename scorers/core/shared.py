"""What plugins share with other processes that decide on the same endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

MAX_NUMBERS = 4096
"""Most numbers of one key."""

MOST = 1e15
"""Largest size of a number: far above all that adds up, and small enough that sums and products of them stay finite."""


class Contribution(NamedTuple):
    """What one sibling has for a key.

    Attributes:
        owner: its id.
        at: monotonic seconds at which it came.
        numbers: as `own` of the sibling returned them; none is larger than `MOST`.
    """

    owner: str
    at: float
    numbers: Sequence[float]


Own: TypeAlias = Callable[[str, float], Sequence[float] | None]
"""Returns this process's numbers of a key at a time in monotonic seconds, None if it has none."""

OnSiblings: TypeAlias = Callable[[str, Sequence[Contribution]], None]
"""Takes what the siblings have for a key, each time all of them."""


class SharedSums:
    """Numbers by key that this process owns, beside those of its siblings, which the plugin adds up.

    Args:
        own: see `Own`.
        on_siblings: see `OnSiblings`.
        known: returns all keys for which `own` has numbers.
        interval_s: least time between two publications of changes.

    Attributes:
        changed: keys whose own numbers have changed since the last publication.
        on_change: called with every change; None if nobody shares.
    """

    def __init__(
        self,
        own: Own,
        on_siblings: OnSiblings,
        known: Callable[[], Sequence[str]],
        *,
        interval_s: float = 0.0,
    ) -> None:
        self.own, self.known, self.interval_s = own, known, interval_s
        self.changed: dict[str, None] = {}
        self.on_change: Callable[[], None] | None = None
        self._on_siblings = on_siblings
        self._theirs: dict[str, dict[str, Contribution]] = {}
        """By key and owner."""

    def note(self, key: str) -> None:
        """Note that own numbers have changed."""
        if self.on_change is not None:
            self.changed[key] = None
            self.on_change()

    def take(self, owner: str, key: str, numbers: Sequence[float] | None, *, now: float) -> None:
        """Take the numbers of a sibling, None if it has none any more; others than `Contribution` says are ignored."""
        owners = self._theirs.setdefault(key, {})
        if numbers is None:
            owners.pop(owner, None)
        elif len(numbers) <= MAX_NUMBERS and all(abs(each) <= MOST for each in numbers):  # false for NaN
            owners[owner] = Contribution(owner, now, numbers)
        if not owners:
            del self._theirs[key]
        self._on_siblings(key, list(owners.values()))

    def drop(self) -> None:
        """Forget what all siblings have."""
        keys, self._theirs = list(self._theirs), {}
        for key in keys:
            self._on_siblings(key, [])


class SharedUses:
    """Keys with what they were last used for: the last use of any process counts, and outlives the process.

    Args:
        on_use: called with key, value, and the monotonic seconds of a sibling's use and of now.
        uses: returns key -> (value, monotonic seconds of the last use) of all that this process knows.

    Attributes:
        changed: key -> value of the own uses since the last publication.
        on_change: called with every own use; None if nobody shares.
    """

    def __init__(
        self,
        on_use: Callable[[str, str, float, float], None],
        uses: Callable[[], Mapping[str, tuple[str, float]]],
    ) -> None:
        self.on_use, self.uses = on_use, uses
        self.changed: dict[str, str] = {}
        self.on_change: Callable[[], None] | None = None

    def note(self, key: str, value: str) -> None:
        """Note an own use."""
        if self.on_change is not None:
            self.changed.pop(key, None)
            self.changed[key] = value
            self.on_change()


@runtime_checkable
class SharesSums(Protocol):
    """Plugin whose numbers add up over several processes."""

    def shared_sums(self) -> Mapping[str, SharedSums]:
        """Return what it shares by name, always the same objects."""
        ...


@runtime_checkable
class SharesUses(Protocol):
    """Plugin that remembers uses, of which the last one counts, whichever process it came from."""

    def shared_uses(self) -> Mapping[str, SharedUses]:
        """Return what it shares by name, always the same objects."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What the plugins of a profile share, by plugin and name; both have `/` between them.

    Attributes:
        sums: numbers that add up.
        uses: uses of which the last one counts.
    """

    sums: Mapping[str, SharedSums] = field(default_factory=dict[str, SharedSums])
    uses: Mapping[str, SharedUses] = field(default_factory=dict[str, SharedUses])

    @classmethod
    def of(cls, plugins: Sequence[tuple[str, object]]) -> Shared:
        """Return what plugins share, given by name."""
        sums = {
            f"{plugin}/{name}": each
            for plugin, found in plugins
            if isinstance(found, SharesSums)
            for name, each in found.shared_sums().items()
        }
        uses = {
            f"{plugin}/{name}": each
            for plugin, found in plugins
            if isinstance(found, SharesUses)
            for name, each in found.shared_uses().items()
        }
        return cls(sums, uses)

    @classmethod
    def together(cls, profiles: Mapping[str, Shared], common: Shared | None) -> Shared:
        """Return what several profiles share, each under its name, and what they have in common."""
        sums = dict(common.sums) if common is not None else {}
        uses = dict(common.uses) if common is not None else {}
        for profile, shared in profiles.items():
            sums.update({f"{profile}/{name}": each for name, each in shared.sums.items()})
            uses.update({f"{profile}/{name}": each for name, each in shared.uses.items()})
        return cls(sums, uses)
