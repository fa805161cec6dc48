"""Samples of a process: its state, its counters, and the rates between two samples."""

from __future__ import annotations

import time
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field

from ....api.rest.frame_models import LiveFrame
from ....api.rest.models import Own
from ....api.rest.replica_models import ReplicasOut
from ...errors import AskError
from ..client import Client

COUNTERS = {
    "requests": "kvatlas_picks_total",
    "refusals": "kvatlas_refusals_total",
    "prompt_tokens": "kvatlas_prompt_tokens_total",
    "cached_tokens": "kvatlas_usable_prefix_tokens_total",
    "without_prefix": "kvatlas_prompts_without_prefix_total",
    "events": "kvatlas_events_applied_total",
    "lost_batches": "kvatlas_stream_lost_total",
}
"""Field of `RatesOut` -> counter, its series added up."""


class RatesOut(Own):
    """Rates of counters, per second."""

    requests: float = Field(description="routed")
    refusals: float
    prompt_tokens: float = Field(description="of routed prompts")
    cached_tokens: float = Field(description="of these, cached on the picked endpoint")
    without_prefix: float = Field(description="routed requests without token ids")
    events: float = Field(description="KV events taken into the index")
    lost_batches: float = Field(description="of events that no replay could bring")


class TopOut(Own):
    """One line of `kvatlas top --json`."""

    frame: LiveFrame
    rates: RatesOut | None = Field(description="null at the first look, and where /metrics is refused")
    replicas: ReplicasOut | None = Field(description="as in /v1/replicas; null if this process decides alone")


@dataclass(frozen=True, slots=True)
class Sample:
    """State and counters at one time.

    Attributes:
        frame: the state.
        counters: as in `COUNTERS`; None if `/metrics` is refused.
        at: monotonic seconds.
        replicas: the other replicas; None if this process decides alone.
    """

    frame: LiveFrame
    counters: dict[str, float] | None
    at: float
    replicas: ReplicasOut | None = None

    def since(self, before: Sample | None) -> RatesOut | None:
        """Return the rates since an earlier sample; None if they are unknown, as after a restart."""
        if before is None or self.counters is None or before.counters is None or self.at <= before.at:
            return None
        risen = {name: count - before.counters[name] for name, count in self.counters.items()}
        if min(risen.values()) < 0:
            return None
        return RatesOut(**{name: by / (self.at - before.at) for name, by in risen.items()})


def take_sample(client: Client) -> Sample:
    """Fetch state and counters.

    Raises:
        AskError: as of `Client.event` and `Client.get`; or `/metrics` has something else than metrics.
    """
    frame = client.event("/v1/live", LiveFrame)
    text = client.text("/metrics")
    try:
        counters = None if text is None else _counters(text)
    except ValueError as error:
        raise AskError(f"{client.url}/metrics: not as kvatlas answers: {error}; see --url") from error
    replicas = client.get("/v1/replicas", ReplicasOut)
    if replicas is not None and replicas.transport == "none":
        replicas = None
    return Sample(frame, counters, time.monotonic(), replicas)


def _counters(text: str) -> dict[str, float]:
    sums = dict.fromkeys(COUNTERS.values(), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    return {field: sums[name] for field, name in COUNTERS.items()}
