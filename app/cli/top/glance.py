"""What one look at a process shows: its state, its counters, and how fast they rise."""

from __future__ import annotations

import time
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field

from ....api.rest.frame_models import LiveFrame
from ....api.rest.models import Own
from ..client import Asker

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
    """How fast counters rise, each a second."""

    requests: float = Field(description="routed")
    refusals: float
    prompt_tokens: float = Field(description="of routed prompts")
    cached_tokens: float = Field(description="of these, cached on the picked endpoint")
    without_prefix: float = Field(description="routed requests without token ids")
    events: float = Field(description="KV events taken into the index")
    lost_batches: float = Field(description="of events that no replay could bring")


class TopOut(Own):
    """What `kvatlas top --json` prints for each look."""

    frame: LiveFrame
    rates: RatesOut | None = Field(description="null at the first look, and where /metrics is refused")


@dataclass(frozen=True, slots=True)
class Glance:
    """One look.

    Attributes:
        frame: the state.
        counters: as in `COUNTERS`; None where `/metrics` is refused.
        at: monotonic seconds.
    """

    frame: LiveFrame
    counters: dict[str, float] | None
    at: float

    def since(self, before: Glance | None) -> RatesOut | None:
        """How fast the counters rose since an earlier look; None where that cannot be said, as over a restart."""
        if before is None or self.counters is None or before.counters is None or self.at <= before.at:
            return None
        risen = {name: count - before.counters[name] for name, count in self.counters.items()}
        if min(risen.values()) < 0:
            return None
        return RatesOut(**{name: by / (self.at - before.at) for name, by in risen.items()})


async def look(asker: Asker) -> Glance:
    """Look at the process now.

    Raises:
        AskError: nobody answers, something that is not kvatlas does, or it refuses.
    """
    frame = await asker.event("/v1/live", LiveFrame)
    text = await asker.text("/metrics")
    return Glance(frame, None if text is None else _counters(text), time.monotonic())


def _counters(text: str) -> dict[str, float]:
    sums = dict.fromkeys(COUNTERS.values(), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    return {field: sums[name] for field, name in COUNTERS.items()}
