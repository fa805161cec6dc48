"""Routes of probes and metrics: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry

from ...fleet.kubernetes.cluster import Cluster
from ...fleet.replicas.view import ReplicasView
from .errors import UnavailableError
from .exposition import Exposition
from .models import ReadyOut


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of the process beside its fleet.

    Attributes:
        why_not_ready: returns the reasons why no requests should be sent here; none if they should.
        cluster: discovery and election.
        replicas: the others that decide for the same endpoints; None if this process decides alone.
    """

    why_not_ready: Callable[[], Sequence[str]]
    cluster: Cluster
    replicas: ReplicasView | None = None


def process_routes(registry: CollectorRegistry, why_not_ready: Callable[[], Sequence[str]]) -> APIRouter:
    """Return the routes of probes and metrics."""
    router, exposition = APIRouter(tags=["process"]), Exposition(registry)

    @router.get("/healthz", summary="Does the process live?")
    async def healthz() -> ReadyOut:
        """Return `ok` while the process answers."""
        return ReadyOut(status="ok")

    @router.get("/readyz", summary="Should requests be sent here?")
    async def readyz() -> ReadyOut:
        """Return `ready`, or the reasons why not: the cluster, the election, the endpoints' event history, or the drain."""
        if reasons := why_not_ready():
            raise UnavailableError(f"not ready: {'; '.join(reasons)}")
        return ReadyOut(status="ready")

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the metrics in Prometheus text form."""
        return await exposition.page()

    return router
