"""The page docs/vllm-check.md: the check, its versions and its results."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .concurrency import CONCURRENT, LEVELS, Audit
from .model import BLOCK_TOKENS
from .number_format import NUMBER_FORMAT
from .report_concurrency import concurrency_passed, render_concurrency
from .report_predictions import Observation, render_mismatches, render_predictions
from .report_routing import arms_of, render_routing, routing_passed
from .report_times import render_times
from .routing import ROUND_ROBIN, ROUTED, WEIGHTS, Run
from .server import ServerOptions, VllmServer
from .tables import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All results of the check.

    Attributes:
        versions: package -> version.
        observation: of the sequential part.
        audits: of the concurrent part.
        routed: servers of the routed part, all alike.
        runs: of the routed part.
        replied: of the same with long replies, `latency` alone.
    """

    versions: Mapping[str, str]
    observation: Observation
    audits: Sequence[Audit]
    routed: Sequence[VllmServer]
    runs: Sequence[Run]
    replied: Sequence[Run]

    @property
    def passed(self) -> bool:
        """Whether every part passed."""
        return (
            self.observation.passed
            and concurrency_passed(self.audits)
            and routing_passed(self.runs)
            and not any(run.workload.errors for run in self.replied)
        )


def render(findings: Findings) -> str:
    """Return the document."""
    sections = (
        _head(findings),
        _setup(findings),
        render_predictions(findings.observation),
        render_mismatches(findings.observation),
        render_concurrency(findings.audits),
        render_routing(findings.runs, findings.routed, findings.observation.scrape_s),
        render_times([arms_of(runs)["latency"].runs for runs in (findings.runs, findings.replied)]),
        _REPETITION,
    )
    return "\n\n".join(sections) + "\n"


def _head(findings: Findings) -> str:
    knowable = findings.observation.knowable
    arms = arms_of(findings.runs)
    latency, weights, base = arms["latency"], arms[WEIGHTS.name], arms[ROUND_ROBIN.name]
    lowest = [each for each in findings.audits if each.level == LEVELS[0]]
    exact = sum(each.exact for each in lowest) / max(1, len(lowest))
    return f"""# Check against real vLLM servers

Written by `make vllm-check` on {datetime.now(UTC).date()}: **{"passed" if findings.passed else "FAILED"}**.

- Of {len(knowable)} requests, kvatlas said of **{sum(p.exact for p in knowable)}** to the token what vLLM then reported as `cached_tokens`; with {LEVELS[0]} requests at
  once, of {exact:.1%}.
- A multi-turn workload through Envoy: hit rate **{latency.hit_rate:.1%}** with `latency`, {weights.hit_rate:.1%} with 2:2:1:1, {base.hit_rate:.1%} round robin; mean time to
  first token **{latency.ttft_s * 1000:.0f} ms**, {weights.ttft_s * 1000:.0f} ms, {base.ttft_s * 1000:.0f} ms."""


def _setup(findings: Findings) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in findings.versions.items())
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    rows = [
        *((f"{server.name}, predictions", server.options) for server in findings.observation.servers),
        *((f"vllm-{number}, requests at once", options) for number, options in enumerate(CONCURRENT)),
        *((f"vllm-{number}, routing", options) for number, options in enumerate(ROUTED)),
    ]
    head = (
        "server",
        "longest request",
        "at once",
        "GPU blocks",
        "CPU blocks",
        "offload chunk",
        "offload events",
    )
    return f"""## What ran

{versions}; {machine}. Envoy with
[`configs/envoy/duplex.yaml`](../configs/envoy/duplex.yaml).

The models have random weights: which blocks are cached does not depend on what a model says. vLLM has no copy kernels for
offloading on CPU, so a tensor copy stands in for that step
([`kvatlas_host_copy.py`](../tests/vllm_check/plugin/kvatlas_host_copy.py)), and there is no CPU build of 0.33, so its Python code
runs over the kernels of 0.32. Scheduler, prefix cache, offload manager, events and publisher are vLLM's own. Block size {BLOCK_TOKENS};
the processor computes in {NUMBER_FORMAT.name}.

{table(head, [(name, *_cells(options)) for name, options in rows])}"""


def _cells(options: ServerOptions) -> tuple[str, ...]:
    chunk = f"{options.chunk_blocks} block" + ("s" if options.chunk_blocks > 1 else "")
    events = (
        "with tokens (`self_describing_kv_events`)"
        if options.self_describing
        else "engine hashes alone (default)"
    )
    return (
        f"{options.shape.max_tokens} tokens",
        str(options.n_running),
        str(options.gpu_blocks),
        str(options.cpu_blocks),
        chunk,
        events,
    )


_REPETITION = """## Repeat it

```sh
make vllm-check                 # VLLM=0.32.0 for that version
```

It installs vLLM for CPU (about 4 GB; x86-64 with AVX2, python3.11), takes some 25 minutes (more than an hour on a
processor without bfloat16 instructions) and 5 GB of memory, writes this file, and ends with status 0 only if it passed. Every message the servers publish is kept beside vLLM as JSON lines, in the
form of the recordings in `tests/golden/`, with the predictions next to them. `ARGS="--latency FILE"` compares another policy,
`ARGS="--seeds N"` sets the number of seeds, and `VLLM_DIR=DIR` says where vLLM is installed, so that checkouts share it."""
