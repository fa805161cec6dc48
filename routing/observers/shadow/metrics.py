"""The shadow as Prometheus families, read when scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ....fleet.families import counter, gauge
from .shadow import Shadow


def shadow_families(shadow: Shadow | None) -> Iterator[Metric]:
    """Yield its decisions and their cost; without samples if there is no shadow."""
    requests = counter("shadow_requests", "Routed requests by what the shadow decided.", "outcome")
    tokens = counter("shadow_cached_tokens", "Tokens expected to be reused.", "choice", "tier")
    gain = gauge("shadow_cached_gain_tokens", "Tokens more a request expected to be reused by the shadow.")
    ttft = gauge("shadow_ttft_gain_seconds", "Seconds sooner that first tokens are expected by the shadow.")
    faults = counter(
        "shadow_faults", "Results of the shadow's plugins that were repaired.", "plugin", "reason"
    )
    cpu = counter("shadow_cpu_seconds", "CPU time of the shadow's decisions.")
    refused = gauge("shadow_refused", "1 if the shadow's file is not in use.")
    if shadow is not None:
        tally = shadow.tally
        for outcome, count in shadow.outcomes.items():
            requests.add_metric([outcome], count)
        for choice, books in (("live", tally.live_tokens), ("shadow", tally.shadow_tokens)):
            for tier, count in books.items():
                tokens.add_metric([choice, tier], count)
        if tally.cached_gain.n:
            gain.add_metric([], tally.cached_gain.mean)
        if tally.ttft_gain_s.n:
            ttft.add_metric([], tally.ttft_gain_s.mean)
        for (plugin, reason), count in shadow.faults.items():
            faults.add_metric([plugin, reason], count)
        cpu.add_metric([], shadow.cpu_s)
        refused.add_metric([], float(bool(shadow.refusal)))
    yield from (requests, tokens, gain, ttft, faults, cpu, refused)
