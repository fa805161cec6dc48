"""Feature gates of the reference picker, none of which kvatlas needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .errors import KeyPath, Problem
from .words import nearest

FLOW_CONTROL = "flowControl"

_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")
"""Values that the reference reads, in any case."""


class _Gate(NamedTuple):
    default: bool
    why: str
    """Why the other value has no effect."""


GATES: Mapping[str, _Gate] = {
    FLOW_CONTROL: _Gate(default=False, why="kvatlas forwards requests at once and has no queues"),
    "haPopulateNonLeaderDatastore": _Gate(
        default=True, why="replicas of kvatlas that do not lead follow the servers too, to be ready at once"
    ),
    "dataLayer": _Gate(default=False, why="kvatlas scrapes by itself; see metricsScrape"),
    "prepareDataPlugins": _Gate(
        default=False, why="kvatlas has a producer's data whenever a plugin reads it"
    ),
    "enableLegacyMetrics": _Gate(
        default=False, why="kvatlas has one way to scrape, by the same series; see metricsScrape"
    ),
}
"""Name of a gate -> its value if it is not named, and why the other one has no effect.

The last three are those of older versions of the reference.
"""


def is_on(gates: Sequence[str], wanted: str) -> bool:
    """Return whether a gate of a list without problems is on; the last entry counts."""
    value = GATES[wanted].default
    for name, found in map(_parsed, gates):
        if name == wanted:
            value = found in _TRUE
    return value


def gate_notes(gates: Sequence[str]) -> Iterator[str]:
    """Yield one line for each gate of a list without problems that is not at its default."""
    for name in sorted({name for name, _ in map(_parsed, gates)}):
        value = is_on(gates, name)
        if value != GATES[name].default:
            shown = name if value else f"{name}=false"
            yield f"feature gate {shown} has no effect: {GATES[name].why}"


def gate_problems(gates: Sequence[str]) -> Iterator[Problem]:
    """Yield unknown gates and unreadable values."""
    for number, gate in enumerate(gates):
        name, value = _parsed(gate)
        path: KeyPath = ("featureGates", number)
        if name not in GATES:
            yield Problem(f"found {gate!r}, expected a feature gate; {nearest(name, GATES)}", path)
        elif value not in (*_TRUE, *_FALSE):
            yield Problem(f"found {gate!r}, expected {name}=true or {name}=false", path)


def _parsed(gate: str) -> tuple[str, str]:
    """Return the name and the value; a name alone is on."""
    name, equals, value = gate.partition("=")
    return name, value.strip().lower() if equals else _TRUE[0]
