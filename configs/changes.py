"""Differences between two configurations, and whether they need a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from .errors import path_text
from .plain import plain
from .schema import KVAtlasConfig
from .secrets import masked

ENTRY = "[]"
"""Step of a path into a list with named entries."""

NAME_KEYS = ("name", "pluginRef", "type")
"""Keys that identify an entry of a list; the first one that is present counts."""

LIVE: tuple[tuple[str, ...], ...] = (
    ("endpoints", "static"),
    ("endpoints", "file"),
    ("events", "port"),
    ("events", "replayPort"),
    ("events", "snapshotPort"),
    ("events", "trustCredit"),
    ("tiers", ENTRY, "lruCapacityPerServer"),
    ("approximate",),
    ("admission",),
    ("policy",),
    ("weights",),
    ("disaggregation",),
    ("plugins",),
    ("schedulingProfiles",),
    ("requestHandler",),
    ("metricsScrape",),
    ("scoring",),
    ("predictions",),
    ("audit",),
    ("shadow",),
)
"""Keys that change without restart, including all keys below them; any other change needs a restart."""

_MAX_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one key.

    Attributes:
        path: keys from the top, `[]` for an entry of a list.
        where: the path for people, with entries by name: `tiers[cpu].lruCapacityPerServer`.
        old: plain data without secrets, None if the key was absent.
        new: the same, None if the key is now absent.
    """

    path: tuple[str, ...]
    where: str
    old: object
    new: object

    @property
    def is_live(self) -> bool:
        """Return whether it takes effect without a restart."""
        return any(self.path[: len(live)] == live for live in LIVE)

    def __str__(self) -> str:
        """Return the change as `weights.queue: 2.0 -> 3.0`."""
        return f"{self.where}: {_shown(self.old)} -> {_shown(self.new)}"


def changes(old: KVAtlasConfig, new: KVAtlasConfig) -> list[Change]:
    """Return every key that differs. Entries of lists are matched by name; the order of endpoints is ignored."""
    return list(_changes((), "", plain(_without_common(old, new)), plain(_without_common(new, old))))


def _without_common(config: KVAtlasConfig, other: KVAtlasConfig) -> KVAtlasConfig:
    """Return the configuration without the endpoints that are the same in the other, of which there may be a thousand."""
    others = {each.name: each for each in other.endpoints.static}
    own = tuple(each for each in config.endpoints.static if others.get(each.name) != each)
    return msgspec.structs.replace(config, endpoints=msgspec.structs.replace(config.endpoints, static=own))


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
    """Return a mapping as it is, None for any other value."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _named(value: object) -> dict[str, object] | None:
    """Return the entries of a list by name, None if it is not a list of entries with unique names."""
    if not isinstance(value, list | tuple):
        return None
    entries = cast("Sequence[object]", value)
    found = {name: entry for entry in entries if (name := _name(entry)) is not None}
    return found if len(found) == len(entries) else None


def _name(entry: object) -> str | None:
    """Return the identifying name of an entry; a plugin without a name is identified by its type."""
    keyed = _keyed(entry) or {}
    return next((str(keyed[key]) for key in NAME_KEYS if keyed.get(key)), None)


def _shown(value: object) -> str:
    """Return a value as text for one line, without its empty parts."""
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
