"""What differs between two configurations, and what of it needs a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from .errors import path_text
from .plain import plain
from .schema import KVAtlasConfig
from .secrets import masked

ENTRY = "[]"
"""Step of a path into a list whose entries have names."""

NAME_KEYS = ("name", "pluginRef", "type")
"""Keys by which an entry of a list is known, the first that it has."""

LIVE: tuple[tuple[str, ...], ...] = (
    ("endpoints", "static"),
    ("endpoints", "file"),
    ("events", "port"),
    ("events", "replayPort"),
    ("events", "trustCredit"),
    ("tiers", ENTRY, "lruCapacityPerServer"),
    ("admission",),
    ("weights",),
    ("plugins",),
    ("schedulingProfiles",),
    ("metricsScrape",),
    ("predictions",),
    ("audit",),
)
"""Keys that change without restart, with all below them; every other key needs one."""

_MAX_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value differs.

    Attributes:
        path: keys from the top, `[]` for an entry of a list.
        where: the path for people, entries by their name: `tiers[cpu].lruCapacityPerServer`.
        old: plain data without secrets, None when the key was not there.
        new: the same, None when it is not there any more.
    """

    path: tuple[str, ...]
    where: str
    old: object
    new: object

    @property
    def is_live(self) -> bool:
        """Whether it takes effect without restart."""
        return any(self.path[: len(live)] == live for live in LIVE)

    def __str__(self) -> str:
        """`weights.queue: 2.0 -> 3.0`."""
        return f"{self.where}: {_shown(self.old)} -> {_shown(self.new)}"


def changes(old: KVAtlasConfig, new: KVAtlasConfig) -> list[Change]:
    """Every key that differs. Entries of lists are told apart by name; the order of endpoints does not count."""
    return list(_changes((), "", plain(old), plain(new)))


def _changes(path: tuple[str, ...], where: str, old: object, new: object) -> Iterator[Change]:
    if old == new:
        return
    before, after = _keyed(old), _keyed(new)
    if before is not None and after is not None:
        for key in {**before, **after}:
            yield from _changes((*path, key), _below(where, key), before.get(key), after.get(key))
        return
    before, after = _named(old), _named(new)
    if before is None or after is None:
        yield Change(path, where, masked(old), masked(new))
        return
    for name in {**before, **after}:
        yield from _changes((*path, ENTRY), f"{where}[{name}]", before.get(name), after.get(name))
    stayed, order = (
        [name for name in names if name in before and name in after] for names in (before, after)
    )
    if stayed != order and path[0] != "endpoints":
        yield Change(path, where, stayed, order)


def _below(where: str, key: str) -> str:
    step = path_text((key,))
    return f"{where}.{step}" if where and not step.startswith("[") else f"{where}{step}"


def _keyed(value: object) -> dict[str, object] | None:
    """A mapping, None when it is none."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _named(value: object) -> dict[str, object] | None:
    """A list's entries by name, None when it is no list of things with names of their own."""
    if not isinstance(value, list | tuple):
        return None
    entries = cast("Sequence[object]", value)
    found = {name: entry for entry in entries if (name := _name(entry)) is not None}
    return found if len(found) == len(entries) else None


def _name(entry: object) -> str | None:
    """What tells an entry from its neighbours: a plugin without a name is known by its type."""
    keyed = _keyed(entry) or {}
    return next((str(keyed[key]) for key in NAME_KEYS if keyed.get(key)), None)


def _shown(value: object) -> str:
    """A value short enough for one line, without what is empty in it."""
    match value:
        case None:
            return "absent"
        case dict():
            entries = cast("dict[str, object]", value).items()
            text = ", ".join(
                f"{key}: {_shown(each)}" for key, each in entries if each not in (None, "", [], {})
            )
            text = f"{{{text}}}"
        case list() | tuple():
            text = f"[{', '.join(_shown(each) for each in cast('Sequence[object]', value))}]"
        case str():
            text = repr(value)
        case float():
            text = f"{value:g}"
        case _:
            text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
