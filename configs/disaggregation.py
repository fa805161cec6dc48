"""Section for stages of requests on different servers, `disaggregation`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import Section


class DisaggregationConfig(Section, frozen=True):
    """Prefill and encode on other servers than decode, by the label `llm-d.ai/role` of endpoints; instead of a profile handler in `plugins`."""

    uncached_tokens: Annotated[int, Meta(ge=0)] = 0
    """Prompt tokens that the decode server would have to compute, from which on a prefill server computes them, or with the policy latency may; 0: never."""
    encode: bool = False
    """Whether encode servers encode images, video and audio."""
    missing_stage: Literal["refuse", "skip"] = "refuse"
    """Request with a wanted stage that no server can do: refuse answers 503, skip leaves the stage to the decode server."""

    @property
    def is_on(self) -> bool:
        """Return whether any stage is apart."""
        return self.uncached_tokens > 0 or self.encode
