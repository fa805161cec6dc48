"""`/v1/capacity-curve`: hit rates with CPU tiers of other sizes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from ...routing.observers.capacity.curve import MAX_GIB, SIZES_GIB, CapacityCurve, CurvePoint, ServerCurve
from .capacity_models import CapacityOut, PointOut, ServerCurveOut

Size = Annotated[float, Field(ge=0, le=MAX_GIB)]
Sizes = Annotated[
    list[Size] | None,
    Query(max_length=64, description="GiB of CPU tier a server, several times; absent: from 0 to 1000"),
]

KV_ADVICE = (
    "model.kvBytesPerToken: bytes that the KV state of a token takes, on all GPUs of a server together"
)


def capacity_routes(curve: CapacityCurve | None) -> APIRouter:
    """Return the route of `/v1/capacity-curve`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/capacity-curve", summary="What would more CPU memory find?")
    async def capacity_curve(gib: Sizes = None) -> CapacityOut:
        """Return the hit rate by size of the CPU tier, from the reuse distances of routed requests."""
        if curve is None:
            return CapacityOut(enabled=False, points=[], endpoints=[])
        found = await curve.look(sorted(set(gib)) if gib else SIZES_GIB)
        return CapacityOut(
            enabled=True,
            points=[_point(each) for each in found.points],
            endpoints=[_server(each) for each in found.servers],
        )

    return router


def _point(point: CurvePoint) -> PointOut:
    return PointOut(gib=point.gib, hit_rate=point.hit_rate, gain_per_10_gib=point.gain)


def _server(curve: ServerCurve) -> ServerCurveOut:
    kv, gpu = curve.kv, curve.gpu_tokens
    return ServerCurveOut(
        name=curve.name,
        block_size=curve.block_size,
        kv_bytes_per_token=kv.n_bytes if kv is not None else None,
        kv_bytes_source=kv.source if kv is not None else KV_ADVICE,
        gpu_gib=gpu * kv.n_bytes / 2**30 if kv is not None and gpu is not None else None,
        tokens=curve.n_tokens,
        sampling_rate=curve.rate,
        followed_keys=curve.n_keys,
        hit_rate_unbounded=curve.hit_rate_unbounded,
        points=[_point(each) for each in curve.points],
    )
