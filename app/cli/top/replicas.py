"""The line of replicas on the screen of `kvatlas top`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ....api.rest.replica_models import ReplicaOut, ReplicasOut
from .names import clean

_HEARD = ("live", "behind")


def replicas_line(replicas: ReplicasOut) -> Text:
    """Return one line: the number of live siblings, and the problem of each other one."""
    heard = [each for each in replicas.replicas if each.state in _HEARD]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("replicas: ")
    if not heard:
        line.append("no other is heard", "bold yellow")
    else:
        oldest = max(each.age_seconds for each in heard)
        line.append(f"{len(heard)} {'other' if len(heard) == 1 else 'others'} heard, ")
        line.append(f"at most {oldest:.1f} s ago", "yellow" if oldest > 1 else "")
    if replicas.problem:
        line.append(f", {clean(replicas.problem)}", "bold red")
    for text, style in _troubles(replicas):
        line.append(f", {clean(text)}", style)
    return line


def _troubles(replicas: ReplicasOut) -> Iterator[tuple[str, str]]:
    for each in replicas.replicas:
        if each.state == "refused":
            yield f"{each.name or 'one without a name'} refused", "bold red"
        elif each.state == "silent":
            yield f"{each.name} silent for {each.age_seconds:.0f} s", "red"
        elif each.missing_messages:
            yield f"{each.missing_messages} messages of {each.name} missing", "yellow"
    for each in replicas.replicas:
        if _differs(each, replicas):
            yield f"{each.name} has another configuration", "yellow"


def _differs(replica: ReplicaOut, replicas: ReplicasOut) -> bool:
    return replica.configuration is not None and replica.configuration != replicas.configuration
