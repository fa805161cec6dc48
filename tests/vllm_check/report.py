"""The page docs/vllm-check.md: the check, its versions and its results."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kvatlas.sim.workload import WorkloadSpec

from .gateway import Outcome, Picks
from .model import BLOCK_TOKENS, MAX_TOKENS
from .prediction import Prediction
from .server import HOST, CacheOptions, VllmServer

_SHOWN_MISMATCHES = 20
_SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All results of the check.

    Attributes:
        versions: package -> version.
        observed: servers of the sequential part.
        predictions: of the sequential part, in order.
        counters: per server, kvatlas's counters of what it could not take, by name.
        scrape_s: median time a server takes for one answer of /metrics.
        routed: servers of the routed part, all alike.
        workload: of the routed part.
        round_robin: the workload without kvatlas.
        kvatlas: the workload with kvatlas.
    """

    versions: Mapping[str, str]
    observed: Sequence[VllmServer]
    predictions: Sequence[Prediction]
    counters: Mapping[str, Mapping[str, int]]
    scrape_s: float
    routed: Sequence[VllmServer]
    workload: WorkloadSpec
    round_robin: Outcome
    kvatlas: Outcome

    @property
    def wrong(self) -> list[Prediction]:
        """Predictions that are not exact although events could have made them so."""
        return [p for p in self.predictions if not p.exact and p.unknowable is None]

    @property
    def passed(self) -> bool:
        """Whether every knowable prediction is exact, and kvatlas had the better hit rate without a failed request."""
        failed = self.round_robin.workload.errors or self.kvatlas.workload.errors
        better = self.kvatlas.workload.hit_rate > self.round_robin.workload.hit_rate
        return better and not self.wrong and not failed


def render(findings: Findings) -> str:
    """Return the document."""
    sections = (_head, _setup, _predictions, _mismatches, _routing, _repetition)
    return "\n\n".join(section(findings) for section in sections) + "\n"


def _head(findings: Findings) -> str:
    predictions = findings.predictions
    knowable = [p for p in predictions if p.unknowable is None]
    exact = sum(p.exact for p in knowable)
    result = "passed" if findings.passed else "FAILED"
    return f"""# Check against real vLLM servers

Written by `make vllm-check` on {datetime.now(UTC).date()}: **{result}**.

- Of {len(knowable)} requests, kvatlas said of **{exact}** to the token what vLLM then reported as `cached_tokens`.
- Hit rate of a multi-turn workload through Envoy: **{findings.kvatlas.workload.hit_rate:.1%}** with kvatlas,
  {findings.round_robin.workload.hit_rate:.1%} round robin."""


def _setup(findings: Findings) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in findings.versions.items())
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    rows = [
        *((f"{server.name}, predictions", server.options) for server in findings.observed),
        *((f"{server.name}, routing", server.options) for server in findings.routed),
    ]
    return f"""## What ran

{versions}; {machine}. kvatlas with its default configuration, Envoy with
[`configs/envoy/duplex.yaml`](../configs/envoy/duplex.yaml).

The model has two layers of random weights: which blocks are cached does not depend on what a model says. vLLM has no
copy kernels for offloading on CPU, so a tensor copy stands in for that step
([`kvatlas_host_copy.py`](../tests/vllm_check/plugin/kvatlas_host_copy.py)). Scheduler, prefix cache, offload manager, events and
publisher are vLLM's own. Block size {BLOCK_TOKENS}, at most {MAX_TOKENS} tokens a request, 4 requests at once a server.

{_table(("server", "GPU blocks", "CPU blocks", "offload chunk", "offload events"), [(name, *_cells(o)) for name, o in rows])}"""


def _cells(options: CacheOptions) -> tuple[str, ...]:
    chunk = f"{options.chunk_blocks} block" + ("s" if options.chunk_blocks > 1 else "")
    events = (
        "with tokens (`self_describing_kv_events`)"
        if options.self_describing
        else "engine hashes alone (default)"
    )
    return str(options.gpu_blocks), str(options.cpu_blocks), chunk, events


def _predictions(findings: Findings) -> str:
    groups: list[tuple[str, Callable[[Prediction], bool]]] = [
        ("all", lambda _: True),
        *((server.name, lambda p, name=server.name: p.server == name) for server in findings.observed),
        *(
            (kind, lambda p, kind=kind: p.kind == kind)
            for kind in sorted({p.kind for p in findings.predictions})
        ),
        ("with `cache_salt`", lambda p: p.salted),
    ]
    rows: list[tuple[str, ...]] = []
    for name, belongs in groups:
        members = [p for p in findings.predictions if belongs(p)]
        counts = (
            len(members),
            sum(p.exact for p in members),
            sum(p.cached > 0 for p in members),
            sum(p.from_cpu for p in members),
        )
        rows.append((name, *map(str, counts)))
    refused = {
        f"{server} {name}": count
        for server, counters in findings.counters.items()
        for name, count in counters.items()
        if count
    }
    trouble = ", ".join(f"{name} {count}" for name, count in refused.items()) or "none"
    return f"""## Predictions

Requests go straight to a server, one at a time, once kvatlas has applied all that the server published. Just before each,
`POST /query` (token ids) or `POST /v1/score` (chat) says how many tokens the server will reuse. Two thirds in, one server's
GPU cache is reset; later the other is restarted on the same addresses, while kvatlas goes on.

{_table(("requests", "number", "exact", "with cached tokens", "from CPU memory"), rows)}

Batches lost, removals without store, and other things kvatlas could not place: {trouble}."""


def _mismatches(findings: Findings) -> str:
    inexact = [p for p in findings.predictions if not p.exact]
    unknowable = [p for p in findings.predictions if p.unknowable is not None]
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
    return f"{text}\n\n" + _table(
        ("request", "server", "kind", "prompt tokens", "predicted", "cached", "explanation"), rows
    )


def _routing(findings: Findings) -> str:
    spec, before, after = findings.workload, findings.round_robin, findings.kvatlas
    rows = [(name, show(before), show(after)) for name, show in _ROUTED]
    rows.append(("requests per server", _per_server(findings, before), _per_server(findings, after)))
    picks = after.picks or Picks(0, 0)
    found = after.tiers.gpu + after.tiers.cpu
    errors = (*before.workload.errors, *after.workload.errors)
    failed = "".join(f"\n\nA failed request: `{error}`" for error in sorted(set(errors))[:_SHOWN_ERRORS])
    return f"""## Routing

{spec.n_requests} requests: {spec.groups} system prompts of {spec.system_words} words, {spec.conversations} conversations on each,
{spec.turns} turns a conversation, replies of {spec.reply_tokens} tokens, {spec.concurrency} requests at once. Before each of the two
runs the servers are started anew.

{_table(("", "round robin", "kvatlas"), rows)}{failed}

kvatlas picked the server of {_share(picks.n_requests, len(after.workload.turns))}. At those picks it counted on {picks.expected_tokens} cached prompt
tokens; for all requests the servers reported {found}. With {spec.concurrency} requests under way, what happens between a pick and its
prefill makes a difference.

How much kvatlas gains depends on the workload. This one is chosen so that the caches of one server hold about half of the
conversations and not all of them. With roomier caches and other shapes the gain was smaller in runs of the same day: 67.2%
against 63.0% (8 system prompts, 4 conversations, 5 turns; 80 GPU and 200 CPU blocks) and 73.9% against 73.2% (7, 5, 5;
80 and 280).

The times say little of a real fleet, and here they speak against kvatlas: servers, kvatlas, Envoy and client share 2 CPUs, and
the prefill of so small a model, which a hit saves, costs next to nothing. Reading `/metrics` every 50 ms
(`metricsScrape.interval`) is part of what kvatlas costs; one answer takes an idle server {findings.scrape_s * 1000:.0f} ms."""


def _share(n_picked: int, n_answered: int) -> str:
    if n_picked >= n_answered:
        return "every request"
    return (
        f"{n_picked} requests. The other {n_answered - n_picked} went\nround robin, because Envoy took it for unhealthy at that "
        "moment, as it may when a health check is not answered in half a second"
    )


_ROUTED: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("prompt tokens", lambda o: str(o.workload.prompt_tokens)),
    ("found on GPU", lambda o: f"{o.tiers.gpu / max(1, o.workload.prompt_tokens):.1%}"),
    ("found in CPU memory", lambda o: f"{o.tiers.cpu / max(1, o.workload.prompt_tokens):.1%}"),
    ("found at all (hit rate)", lambda o: f"{o.workload.hit_rate:.1%}"),
    ("mean time to first token", lambda o: f"{o.workload.mean_ttft_s * 1000:.0f} ms"),
    ("p90 time to first token", lambda o: f"{o.workload.p90_ttft_s * 1000:.0f} ms"),
    ("failed requests", lambda o: str(len(o.workload.errors))),
)


def _per_server(findings: Findings, outcome: Outcome) -> str:
    counts = outcome.workload.requests_by_server
    return ", ".join(f"{s.name} {counts[f'{HOST}:{s.ports.http}']}" for s in findings.routed)


def _repetition(_: Findings) -> str:
    return """## Repeat it

```sh
make vllm-check
```

It installs vLLM for CPU (about 4 GB; x86-64 with AVX2, python3.11), takes some five minutes and 5 GB of memory, writes this
file, and ends with status 0 only if it passed. Every message the servers publish is kept beside vLLM as JSON lines, in the
form of the recordings in `tests/golden/`, with the predictions next to them."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
