"""The answer of `/v1/capacity-curve`."""

from __future__ import annotations

from pydantic import Field

from .models import Own


class PointOut(Own):
    """One size."""

    gib: float = Field(description="CPU tier of each server")
    hit_rate: float = Field(description="part of the prompt tokens found")
    gain_per_10_gib: float | None = Field(
        description="how much more 10 GiB more would find, on the way to the next size; null at the last",
    )


class ServerCurveOut(Own):
    """One endpoint."""

    name: str
    block_size: int
    kv_bytes_per_token: float | None = Field(description="null: not known, and then there are no points")
    kv_bytes_source: str = Field(
        description="where that is known from; else the configuration line that says it"
    )
    gpu_gib: float | None = Field(description="size of its GPU tier, as far as both are known")
    tokens: float = Field(description="prompt tokens that the curve rests on, older ones counted less")
    sampling_rate: float = Field(description="part of the blocks that is followed")
    followed_keys: int = Field(description="blocks that are followed")
    hit_rate_unbounded: float = Field(description="part of the prompt tokens found with any size")
    points: list[PointOut]


class CapacityOut(Own):
    """Answer of `/v1/capacity-curve`."""

    enabled: bool = Field(description="whether curves are kept: capacityCurve.enabled")
    points: list[PointOut] = Field(description="all endpoints together, each with a CPU tier of that size")
    endpoints: list[ServerCurveOut] = Field(description="those that requests were routed to")
