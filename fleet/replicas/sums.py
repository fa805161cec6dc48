"""Numbers that add up over the replicas, such as those behind learned costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...scorers.core.shared import SharedSums
from .entries import Entries

MAX_ENTRIES = 65_536
"""Most keys of one owner: the endpoints of four plugins in the largest fleet."""


class Sums:
    """Channel `sums`: what each replica knows by key; see `scorers.core.shared.SharedSums`.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries = Entries(tuple[float, ...], self._changed, max_entries=MAX_ENTRIES)
        self._times: dict[str, dict[str, float]] = {}
        """Owner -> entry -> when it came as it is."""
        self._shares: dict[str, SharedSums] = {}
        self._due: dict[str, float] = {}
        """Time of the next publication of what has an interval."""
        self._on_change: Callable[[], None] = _nothing

    def use(self, shares: Mapping[str, SharedSums]) -> None:
        """Share these sums from now on, and no others: another policy decides. They get what the siblings have published."""
        now = self._clock()
        for name, before in self._shares.items():
            before.on_change = None
            if shares.get(name) is not before:  # it may be shared on, by another name
                before.drop()
        for key in list(self._entries.own()):
            self._entries.put(key, None)
        self._shares, self._due = dict(shares), {}
        for name, share in self._shares.items():
            share.on_change = self._noted
            for key in share.known():
                self._entries.put(_joined(name, key), _own(share, key, now))
        for owner, entries in self._entries.owners().items():
            for entry, numbers in entries.items():
                self._give(owner, entry, numbers, self._times[owner][entry])

    def listen(self, on_change: Callable[[], None]) -> None:
        """See `Channel.listen`."""
        self._on_change = on_change
        self._entries.listen(on_change)

    def drain(self) -> Sequence[bytes]:
        """See `Channel.drain`."""
        now = self._clock()
        for name, share in self._shares.items():
            if not share.changed or now < self._due.get(name, now):
                continue
            self._due[name] = now + share.interval_s
            for key in share.changed:
                self._entries.put(_joined(name, key), _own(share, key, now))
            share.changed.clear()
        return self._entries.drain()

    def whole(self) -> Sequence[bytes]:
        """See `Channel.whole`."""
        now, own = self._clock(), dict(self._entries.own())
        for name, share in self._shares.items():
            for key in share.known():  # ages have grown since the last change, which is none by itself
                numbers = _own(share, key, now)
                if numbers is not None:
                    own[_joined(name, key)] = numbers
                else:
                    own.pop(_joined(name, key), None)
        return self._entries.whole_of(own)

    def apply(self, owner: str, payload: bytes) -> None:
        """See `Channel.apply`."""
        self._entries.apply(owner, payload)

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """See `Channel.replace`."""
        self._entries.replace(owner, payloads)

    def drop(self, owner: str) -> None:
        """See `Channel.drop`."""
        self._entries.drop(owner)
        self._times.pop(owner, None)

    def _noted(self) -> None:
        self._on_change()

    def _changed(
        self, owner: str, entry: str, _: Sequence[float] | None, numbers: Sequence[float] | None
    ) -> None:
        now, times = self._clock(), self._times.setdefault(owner, {})
        if numbers is None:
            times.pop(entry, None)
        else:
            times[entry] = now
        self._give(owner, entry, numbers, now)

    def _give(self, owner: str, entry: str, numbers: Sequence[float] | None, at: float) -> None:
        name, key = entry.split("\n", 1) if "\n" in entry else ("", "")
        share = self._shares.get(name)
        if share is not None:
            share.take(owner, key, numbers, now=at)


def _own(share: SharedSums, key: str, now: float) -> tuple[float, ...] | None:
    numbers = share.own(key, now)
    return tuple(numbers) if numbers is not None else None


def _joined(name: str, key: str) -> str:
    return f"{name}\n{key}"


def _nothing() -> None:
    pass
