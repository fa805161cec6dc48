"""`/v1/doctor`: what is wrong with this deployment, and the line that fixes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastapi import APIRouter
from prometheus_client import CollectorRegistry

from ...configs.policies import stages_apart
from ...fleet.fleet import Fleet
from ...fleet.turns import in_turns
from ...routing.plan.live import LiveConfig
from ..doctor.check import Result, examine, worst
from ..doctor.checks import CHECKS
from ..doctor.deployment import Counts, Deployment
from ..doctor.stages.visits import Visits
from .doctor_models import CheckOut, DoctorOut
from .exposition import collected
from .process import ProcessState


def doctor_routes(
    fleet: Fleet, live: LiveConfig, registry: CollectorRegistry, state: ProcessState
) -> APIRouter:
    """Return the route of `/v1/doctor`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])
    visits = Visits()
    turn = asyncio.Lock()  # the metrics of 1,000 endpoints take 10 MB until all checks are done

    @router.get("/doctor", summary="What is wrong, and what mends it?")
    async def doctor() -> DoctorOut:
        """Run every check and return its findings. Costs as much as a scrape of `/metrics`; with stages apart, servers are visited."""
        config = live.in_force
        visited = await visits.of(fleet if stages_apart(config) else (), config.metrics_scrape.tls)
        async with turn:
            deployment = Deployment(
                config=config,
                fleet=fleet,
                counts=Counts(await collected(registry)),
                now=time.monotonic(),
                wall=time.time(),
                refused=live.refusals,
                cluster=state.cluster,
                visits=visited,
                replicas=state.replicas,
            )
            return diagnosis([each async for each in in_turns(_results(deployment))])

    return router


def _results(deployment: Deployment) -> Iterator[Result]:
    """Yield the result of each check, as of the time at which it looks."""
    for check in CHECKS:
        yield from examine((check,), replace(deployment, now=time.monotonic()))


def diagnosis(results: Sequence[Result]) -> DoctorOut:
    """Return the results of checks as an answer."""
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
