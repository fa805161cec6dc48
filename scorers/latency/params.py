"""Costs of a request before anything is learned, and how they are learned."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ..core.params import PluginParams

Positive = Annotated[float, Meta(gt=0)]


class LatencyCostParams(PluginParams, frozen=True):
    """Parameters of `latency-cost-scorer`; its costs are the priors of the fit."""

    overhead_ms: Positive = 30.0
    """Milliseconds of a request with a fully cached prompt and no requests ahead."""
    prefill_tokens_per_second: Positive = 15_928.0
    """Prompt tokens that an endpoint computes per second."""
    load_tokens_per_second: dict[str, Positive] = field(default_factory=dict[str, Positive])
    """Tokens that an endpoint loads per second, by the name of the slower tier; default 100000 for the second, 20000 for all further."""
    fit: bool = True
    """Whether the costs are learned from observed times to first token."""
    group_label: str = ""
    """Label whose value groups endpoints with equal costs; empty: all endpoints are one group."""
    max_factor: Annotated[float, Meta(gt=1)] = 20.0
    """Largest factor between a learned cost and its configured value, in both directions."""
    half_life_observations: Annotated[float, Meta(ge=50)] = 1000.0
    """Number of later observations after which an observation has half its weight."""
    scale_ms: Positive = 1000.0
    """Expected time in milliseconds that scores 0.5."""
