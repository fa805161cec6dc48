"""The sections of docs/vllm-check.md on predictions, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .prediction import Prediction
from .server import VllmServer
from .tables import table

_SHOWN_MISMATCHES = 20


@dataclass(frozen=True, slots=True)
class Observation:
    """The sequential part.

    Attributes:
        servers: the servers.
        predictions: in order.
        counters: per server, kvatlas's counters of what it could not take, by name.
        scrape_s: median time a server takes for one answer of /metrics.
    """

    servers: Sequence[VllmServer]
    predictions: Sequence[Prediction]
    counters: Mapping[str, Mapping[str, int]]
    scrape_s: float

    @property
    def knowable(self) -> list[Prediction]:
        """Predictions that events could have made exact."""
        return [p for p in self.predictions if p.unknowable is None]

    @property
    def passed(self) -> bool:
        """Whether all those are exact."""
        return all(p.exact for p in self.knowable)


def render_predictions(part: Observation) -> str:
    groups: list[tuple[str, Callable[[Prediction], bool]]] = [
        ("all", lambda _: True),
        *((server.name, lambda p, name=server.name: p.server == name) for server in part.servers),
        *((kind, lambda p, kind=kind: p.kind == kind) for kind in sorted({p.kind for p in part.predictions})),
        ("with `cache_salt`", lambda p: p.salted),
    ]
    rows: list[tuple[str, ...]] = []
    for name, belongs in groups:
        members = [p for p in part.predictions if belongs(p)]
        counts = (
            len(members),
            sum(p.exact for p in members),
            sum(p.cached > 0 for p in members),
            sum(p.from_cpu for p in members),
        )
        rows.append((name, *map(str, counts)))
    refused = {
        f"{server} {name}": count
        for server, counters in part.counters.items()
        for name, count in counters.items()
        if count
    }
    trouble = ", ".join(f"{name} {count}" for name, count in refused.items()) or "none"
    return f"""## Predictions

Requests go straight to a server, one at a time, once kvatlas has applied all that the server published. Just before each,
`POST /query` (token ids) or `POST /v1/score` (chat) says how many tokens the server will reuse. Two thirds in, one server's
GPU cache is reset; later the other is restarted on the same addresses, while kvatlas goes on.

{table(("requests", "number", "exact", "with cached tokens", "from CPU memory"), rows)}

Batches lost, removals without store, and other things kvatlas could not place: {trouble}."""


def render_mismatches(part: Observation) -> str:
    inexact = [p for p in part.predictions if not p.exact]
    unknowable = [p for p in part.predictions if p.unknowable is not None]
    told = "\n".join(
        f"- {p.unknowable.value} ({p.server}): {'exact all the same' if p.exact else 'not exact'}"
        for p in unknowable
        if p.unknowable is not None
    )
    text = f"""## What events could not tell

vLLM tells of a cache reset only with the next request, and of a restart not at all; kvatlas sees a restart by the broken
connection and the process start time.

{told}"""
    if not inexact:
        return text
    rows = [
        (
            str(p.number),
            p.server,
            p.kind,
            str(p.n_tokens),
            str(p.predicted),
            str(p.cached),
            p.unknowable.value if p.unknowable else "**none known: a defect**",
        )
        for p in inexact[:_SHOWN_MISMATCHES]
    ]
    return f"{text}\n\n" + table(
        ("request", "server", "kind", "prompt tokens", "predicted", "cached", "explanation"), rows
    )
