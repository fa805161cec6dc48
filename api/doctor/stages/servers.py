"""Checks of stages on different servers: are they there, do they fit, and do sidecars obey the headers?"""

from __future__ import annotations

from collections.abc import Iterator

from ....configs.policies import stages_apart
from ....scorers.core.decision import ENCODE, PREFILL
from ....scorers.filters.roles import ROLE_LABEL
from ..check import Check, Finding, State
from ..deployment import Deployment
from .fitting import misfits
from .pools import DECODE, KNOWN_ROLES, ROLES, Pool, Server, named, pools
from .visits import TELLING_PATH, Face

_VERBS = {DECODE: "decodes", PREFILL: "prefills", ENCODE: "encodes"}
_ONE_WHOLE = Finding(State.OK, "no stage of requests is on a server of its own")

_SIDECAR = (
    "endpoints: the address of the sidecar (its --port), which has the engine at --model-server-port; or no "
    "disaggregation, if there is no sidecar"
)


def _there(deployment: Deployment) -> Iterator[Finding]:
    apart = stages_apart(deployment.config)
    for pool in pools(deployment):
        yield from _roles(pool, apart)
        yield from _models(pool, apart)
        counts = ", ".join(f"{len(pool.of(stage))} {stage}" for stage in ROLES)
        if not apart and not any(each.role for each in pool.servers):
            yield _ONE_WHOLE
        elif not _missing(pool, apart):
            yield Finding(State.OK, f"{pool.title}: {counts}")
        for stage in _missing(pool, apart):
            yield Finding(
                State.FAIL,
                f"{pool.title}: no endpoint {_VERBS[stage]} ({counts}, of {len(pool.servers)})",
                f"label {ROLE_LABEL}: {stage} on an endpoint of that model",
            )


def _missing(pool: Pool, apart: frozenset[str]) -> list[str]:
    """Return the stages that the pool's requests need and none of its servers does."""
    has_roles = any(each.role is not None for each in pool.servers)
    needed = [DECODE, *sorted(apart)] if apart or has_roles else []
    return [stage for stage in needed if pool.servers and not pool.of(stage)]


def _roles(pool: Pool, apart: frozenset[str]) -> Iterator[Finding]:
    for server in pool.servers:
        if server.role not in KNOWN_ROLES:
            yield Finding(
                State.WARN,
                f"{server.name}: label {ROLE_LABEL} is {server.role!r}, which is no role: no stage picks it",
                f"label {ROLE_LABEL}: one of {', '.join(sorted(role for role in KNOWN_ROLES if role))}",
            )
    if apart:
        return
    idle = [each for each in pool.servers if each.role in KNOWN_ROLES and not each.does(DECODE)]
    if idle:
        yield Finding(
            State.WARN,
            f"{named(idle)}: role {idle[0].role}, and the configuration has no stage apart",
            "disaggregation: {uncachedTokens: 512}, or no such label",
        )


def _models(pool: Pool, apart: frozenset[str]) -> Iterator[Finding]:
    """Find servers of a stage whose model no server of the other stage has, by the models in their metrics."""
    sides = ((PREFILL, DECODE, State.FAIL), (DECODE, PREFILL, State.WARN))
    for stage, other, state in sides if PREFILL in apart else ():
        others = pool.of(other)
        served = frozenset[str]().union(*(each.traits.models for each in others))
        if not others or not all(each.traits.models for each in others):
            continue
        for server in pool.of(stage):
            models = server.traits.models
            if models and not models & served:
                yield Finding(
                    state,
                    f"{server.name}: {_VERBS[stage]} {', '.join(sorted(models))}, and no endpoint that {_VERBS[other]} "
                    f"serves that, but {', '.join(sorted(served))}",
                    f"models[].endpointLabels that tell the models apart, and an endpoint of that model with role {other}",
                )


def _fit(deployment: Deployment) -> Iterator[Finding]:
    if not stages_apart(deployment.config):
        yield _ONE_WHOLE
        return
    for pool in pools(deployment):
        prefills, decodes = pool.of(PREFILL), pool.of(DECODE)
        if prefills and decodes:
            yield from misfits(pool.title, prefills, decodes)


def _sidecars(deployment: Deployment) -> Iterator[Finding]:
    if not stages_apart(deployment.config):
        yield _ONE_WHOLE
        return
    servers = {each.name: each for pool in pools(deployment) for each in pool.servers}
    yield from map(_answered, servers.values())


def _answered(server: Server) -> Finding:
    visit = server.visit
    if visit is None or visit.face is None:
        why = f"{visit.url}: {visit.error}" if visit is not None else "was not visited yet"
        return Finding(State.UNKNOWN, f"{server.name}: {why}")
    found, is_decode = f"{server.name}: {visit.face.value} answers at {visit.url}", server.does(DECODE)
    match visit.face:
        case Face.ENGINE if is_decode:
            return Finding(
                State.FAIL,
                f"{found}, so that it computes every prompt itself, whatever kvatlas names",
                _SIDECAR,
            )
        case Face.SIDECAR if not is_decode:
            return Finding(
                State.WARN,
                f"{found}: prompts take one proxy more, whose /health is 200 without an engine too",
                "endpoints: the address of the engine itself (the sidecar's --model-server-port)",
            )
        case Face.TLS:
            return Finding(
                State.FAIL,
                found,
                "the sidecar's --secure-proxy=false; or TLS from the gateway, `metrics: https://...` of the endpoint, "
                "and --enable-tls=prefiller of the sidecars that call it",
            )
        case Face.UNKNOWN:
            return Finding(State.UNKNOWN, f"{found}, by its answer to GET {TELLING_PATH}")
        case _:
            return Finding(State.OK, found)


CHECKS = (
    Check(
        "stages-served",
        "Has every stage of requests servers, of each model?",
        "requests are refused, or the decode server does that stage too",
        _there,
        needs_process=False,
    ),
    Check(
        "stages-fit",
        "Can prefill servers hand over to decode servers?",
        "transfers fail, and prompts are computed twice or requests end with an error",
        _fit,
    ),
    Check(
        "sidecars-answer",
        "Do sidecars answer where requests go, and engines where prompts are computed?",
        "the headers that name servers of other stages have no effect",
        _sidecars,
    ),
)
