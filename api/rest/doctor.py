"""`/v1/doctor`: what is wrong with this deployment, and which line mends it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter
from prometheus_client import CollectorRegistry

from ...fleet.fleet import Fleet
from ...routing.plan.live import LiveConfig
from ..doctor.check import Result, examine, worst
from ..doctor.checks import CHECKS
from ..doctor.patient import Counts, Patient
from .doctor_models import CheckOut, DoctorOut


def doctor_routes(fleet: Fleet, live: LiveConfig, registry: CollectorRegistry) -> APIRouter:
    """`/v1/doctor`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/doctor", summary="What is wrong, and what mends it?")
    async def doctor() -> DoctorOut:
        """Every check with what it saw. Costs as much as a scrape of `/metrics`."""
        patient = Patient(
            config=live.in_force,
            fleet=fleet,
            counts=Counts(registry),
            now=time.monotonic(),
            wall=time.time(),
            refused=live.refusals,
        )
        return diagnosis(examine(CHECKS, patient))

    return router


def diagnosis(results: Sequence[Result]) -> DoctorOut:
    """What checks found, as REST gives it."""
    return DoctorOut(state=worst(results).value, checks=[_check(result) for result in results])


def _check(result: Result) -> CheckOut:
    is_well = result.state.value in ("ok", "unknown")
    return CheckOut(
        name=result.check.name,
        asks=result.check.asks,
        state=result.state.value,
        evidence=list(result.evidence),
        more=result.n_more,
        effect=None if is_well else result.check.effect,
        remedies=[] if is_well else list(result.remedies),
    )
