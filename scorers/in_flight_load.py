"""`inflight-load-producer`: what a request adds to the load of its endpoint until its response begins."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from .core.params import PluginParams
from .core.registry import Registry

PLUGIN_TYPE = "inflight-load-producer"


class InFlightLoadParams(PluginParams, frozen=True):
    """Parameters of `inflight-load-producer`."""

    add_estimated_output_tokens: bool = False
    """Whether estimated output tokens count as load, beside uncached prompt tokens."""
    output_ratio: Annotated[float, Meta(ge=0)] = 1.5
    """Estimated output tokens per prompt token."""
    max_estimated_output_tokens: Annotated[int, Meta(ge=0)] | None = None
    """Upper limit of the estimate; absent: the client's alone."""
    prefix_match_info_producer_name: str = ""
    """Accepted without effect: the tokens that the engine would reuse from any tier count as cached."""
    sync_cross_replica_state: bool | None = None
    """Accepted without effect: replicas share their accounts, see `replicas`."""


class InFlightLoad:
    """Estimates output tokens: `ratio` per prompt token, rounded, at most the client's limit and `most`.

    Args:
        ratio: output tokens per prompt token.
        most: upper limit, None for no limit.
        adds_output: whether output tokens count at all.
    """

    def __init__(self, ratio: float, most: int | None, *, adds_output: bool = True) -> None:
        self.adds_output, self._ratio, self._most = adds_output, ratio, most

    def output_tokens(self, n_prompt: int, *, asked: int | None) -> int:
        """See `LoadEstimate`."""
        n_tokens = math.floor(n_prompt * self._ratio + 0.5)
        if asked is not None:
            n_tokens = min(n_tokens, asked)
        return n_tokens if self._most is None else min(n_tokens, self._most)


def register(registry: Registry) -> None:
    """Register `inflight-load-producer`."""
    registry.loads.add(
        PLUGIN_TYPE,
        InFlightLoadParams,
        lambda params, _: InFlightLoad(
            params.output_ratio,
            params.max_estimated_output_tokens,
            adds_output=params.add_estimated_output_tokens,
        ),
    )
