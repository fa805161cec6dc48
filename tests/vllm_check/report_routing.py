"""The section of docs/vllm-check.md on routing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from kvatlas.sim.workload import Turn

from .routing import ROUND_ROBIN, WEIGHTS, WORKLOAD, Run
from .server import HOST, VllmServer
from .tables import table

_WANTED_GAIN = 0.25
"""Part of round robin's mean time to first token that `latency` saves."""
_SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class ArmRuns:
    """All runs of one arm."""

    name: str
    runs: Sequence[Run]

    @property
    def turns(self) -> list[Turn]:
        """All turns."""
        return [turn for run in self.runs for turn in run.workload.turns]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens sent."""
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def hit_rate(self) -> float:
        """Part of the prompt tokens that the servers had cached."""
        return sum(turn.cached_tokens for turn in self.turns) / max(1, self.prompt_tokens)

    @property
    def ttft_s(self) -> float:
        """Mean time to the first token."""
        return mean(turn.ttft_s for turn in self.turns)

    @property
    def p90_s(self) -> float:
        """90th percentile of the time to the first token."""
        times = sorted(turn.ttft_s for turn in self.turns)
        return times[-(-len(times) * 9 // 10) - 1]

    def gain(self, other: ArmRuns) -> float:
        """Return the part of the other's mean time to first token that this arm saves."""
        return 1.0 - self.ttft_s / other.ttft_s

    def gains(self, other: ArmRuns) -> list[float]:
        """Return the same for each seed, in order."""
        theirs = {run.spec.seed: run.workload.mean_ttft_s for run in other.runs}
        return [
            1.0 - run.workload.mean_ttft_s / theirs[run.spec.seed]
            for run in sorted(self.runs, key=lambda run: run.spec.seed)
        ]


def arms_of(runs: Sequence[Run]) -> dict[str, ArmRuns]:
    """Return the runs by arm, in the order of appearance."""
    names = dict.fromkeys(run.arm for run in runs)
    return {name: ArmRuns(name, [run for run in runs if run.arm == name]) for name in names}


def routing_passed(runs: Sequence[Run]) -> bool:
    """Whether `latency` gains enough over round robin, and gains over 2:2:1:1, without a failed request."""
    arms = arms_of(runs)
    latency = arms["latency"]
    failed = any(run.workload.errors for run in runs)
    return (
        not failed
        and latency.hit_rate > arms[ROUND_ROBIN.name].hit_rate
        and latency.gain(arms[ROUND_ROBIN.name]) >= _WANTED_GAIN
        and latency.gain(arms[WEIGHTS.name]) > 0
    )


def render_routing(runs: Sequence[Run], servers: Sequence[VllmServer], scrape_s: float) -> str:
    """Return the section."""
    arms = list(arms_of(runs).values())
    base = next(arm for arm in arms if arm.name == ROUND_ROBIN.name)
    shape, n_seeds = servers[0].options.shape, len(base.runs)
    rows = [
        ("hit rate", *(f"{arm.hit_rate:.1%}" for arm in arms)),
        ("found on GPU", *(_tier(arm, "device") for arm in arms)),
        ("found in CPU memory", *(_tier(arm, "host") for arm in arms)),
        ("mean time to first token", *(f"{arm.ttft_s * 1000:.0f} ms" for arm in arms)),
        ("beside round robin", *(f"{-arm.gain(base):+.1%}" if arm is not base else "" for arm in arms)),
        ("the same by seed", *(_by_seed(arm, base) if arm is not base else "" for arm in arms)),
        ("p90 of the time to first token", *(f"{arm.p90_s * 1000:.0f} ms" for arm in arms)),
        ("CPU time of the servers, per request", *(_per_request(arm) for arm in arms)),
        ("scrapes of a server, per second", *(_scrapes(arm, len(servers)) for arm in arms)),
        ("cached tokens expected at the picks, beside those found", *(_expected(arm) for arm in arms)),
        ("requests per server", *(_per_server(arm, servers) for arm in arms)),
        ("failed requests", *(str(sum(len(run.workload.errors) for run in arm.runs)) for arm in arms)),
    ]
    errors = sorted({error for run in runs for error in run.workload.errors})[:_SHOWN_ERRORS]
    failed = "".join(f"\n\nA failed request: `{error}`" for error in errors)
    return f"""## Routing

{WORKLOAD.n_requests} requests: {WORKLOAD.groups} system prompts of {WORKLOAD.system_words} words, {WORKLOAD.conversations} conversations on each,
{WORKLOAD.turns} turns a conversation, replies of {WORKLOAD.reply_tokens} tokens, {WORKLOAD.concurrency} requests at once, {base.prompt_tokens // max(1, len(base.turns))} prompt tokens a request.
{n_seeds} seeds; for each, one run under every policy, on the same servers, in an order that rotates. A run sends a cache
salt of its own, so that it finds nothing of the runs before. kvatlas and Envoy start anew for each run, and what
`latency` learns of the servers' speed begins at its defaults.

The model of this part has {shape.n_layers} layers and {shape.n_weights / 1e6:.0f} million random weights. Each server is bound to one of the two processors, which
kvatlas, Envoy and the client share with it.

{table(("", *(arm.name for arm in arms)), rows)}{failed}

- *round robin* is Envoy alone, *2:2:1:1* kvatlas with its default weights, and *latency* kvatlas with
  [`policy: latency`](configuration.md#policies) ([`latency.yaml`](../tests/vllm_check/latency.yaml)).
- A scrape costs a server {scrape_s * 1000:.0f} ms of its processor. The default weights read the scraped load, so busy servers are scraped
  every 50 ms. `latency` knows the load from its own accounts, and servers that report nothing else are
  [scraped less often](scraping.md#how-often).
- How much kvatlas gains depends on the workload. This one is chosen so that the caches of one server hold about half of the
  conversations and not all of them."""


def _tier(arm: ArmRuns, tier: str) -> str:
    return f"{sum(run.tiers[tier] for run in arm.runs) / max(1, arm.prompt_tokens):.1%}"


def _by_seed(arm: ArmRuns, base: ArmRuns) -> str:
    return ", ".join(f"{-gain:+.0%}" for gain in arm.gains(base))


def _per_request(arm: ArmRuns) -> str:
    return f"{sum(run.server_s for run in arm.runs) / max(1, len(arm.turns)) * 1000:.0f} ms"


def _scrapes(arm: ArmRuns, n_servers: int) -> str:
    if not any(run.scrapes for run in arm.runs):
        return ""
    return f"{sum(run.scrapes for run in arm.runs) / n_servers / sum(run.elapsed_s for run in arm.runs):.1f}"


def _expected(arm: ArmRuns) -> str:
    if not any(run.picks for run in arm.runs):
        return ""
    found = sum(sum(run.tiers.values()) for run in arm.runs)
    return f"{sum(run.expected_tokens for run in arm.runs) / max(1, found) - 1:+.1%}"


def _per_server(arm: ArmRuns, servers: Sequence[VllmServer]) -> str:
    counts: Counter[str] = Counter(turn.server for turn in arm.turns)
    return ", ".join(str(counts[f"{HOST}:{server.ports.http}"]) for server in servers)
