"""The REST application."""

from __future__ import annotations

import socket
from importlib.metadata import version
from typing import NamedTuple

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from ...configs.listeners import AuthConfig
from ...configs.networks import parse_network
from ...configs.schema import KVAtlasConfig
from ...fleet.families import StateCollector
from ...fleet.fleet import Fleet
from ...fleet.lmcache.publishers import LmcachePublishers
from ...routing.observers.observers import Observers
from ...routing.picker import Picker
from ...routing.plan.live import LiveConfig
from .answers import Answers
from .at_once import AnswersAtOnce
from .audit import audit_routes
from .auth import METRICS_PATH, BearerAuth, Tokens
from .capacities import capacities_routes
from .capacity import capacity_routes
from .config import config_routes
from .decisions import decision_routes
from .doctor import doctor_routes
from .endpoints import endpoint_routes
from .errors import install_error_handlers, unexpected
from .exposition import Exposition
from .feed import LiveFeed
from .hosts import HostNames
from .index import index_routes
from .limits import BodyReception, CallLimit
from .live import live_routes
from .lmcache import lmcache_routes
from .metrics import RestMetrics
from .models import ErrorOut
from .open_calls import OpenCalls
from .openapi import describe
from .policy import policy_routes
from .process import ProcessState, process_routes
from .questions import QuestionDoor
from .recorder import recorder_routes
from .reference import reference_routes
from .registration import Registrations, registration_routes
from .replicas import replica_routes
from .reviewed import MetricsReviews, ReviewAuth
from .score import Scores, score_routes
from .shadow import shadow_routes
from .standard import ModelNames, StandardQueries, standard_routes
from .ui import ui_routes
from .weights import weight_routes


class RestApp(NamedTuple):
    """The application, in two forms.

    Attributes:
        asgi: serves every call.
        at_once: answers plain questions before that; see `AnswersAtOnce`.
    """

    asgi: ASGIApp
    at_once: AnswersAtOnce


def rest_app(
    *,
    picker: Picker,
    answers: Answers,
    observers: Observers,
    live: LiveConfig,
    instances: Registrations,
    model_names: frozenset[str],
    registry: CollectorRegistry,
    metrics: RestMetrics,
    feed: LiveFeed,
    state: ProcessState,
    reviews: MetricsReviews | None = None,
) -> RestApp:
    """Return the application with every REST route of the process.

    Guards and the door of questions stand before the library, whose own way to a route costs more than a short question.
    Tokens and limits are those of the configuration at the start.

    Args:
        picker: scores prompts and knows the fleet.
        answers: of decisions, audit and weights.
        observers: shown over REST.
        live: the configuration.
        instances: registered at run time.
        model_names: served names and aliases.
        registry: metrics shown at `/metrics`.
        metrics: counters of REST itself.
        feed: frames of `/v1/live`.
        state: for `/readyz` and the doctor.
        reviews: decides about calls of `/metrics`, None if the cluster does not.
    Raises:
        AuthError: the file with the bearer token cannot be used.
    """
    app = FastAPI(
        title="kvatlas",
        version=version("kvatlas"),
        description="Where KV-cache blocks are, and which endpoint should take a request.",
        openapi_url=None,  # `reference_routes` serves it
        docs_url=None,  # the library's pages load scripts from other sites
        redoc_url=None,
        responses={"4XX": {"model": ErrorOut}, "5XX": {"model": ErrorOut}},
    )
    install_error_handlers(app)
    queries = StandardQueries(picker.fleet, ModelNames(model_names, instances), picker.reader)
    scores = Scores(picker)
    questions = queries.questions | scores.questions
    tokens = Tokens(live.in_force.server.auth)
    networks = [parse_network(text) for text in live.in_force.rest.register_allow]
    app.include_router(
        registration_routes(
            picker.fleet, instances, allowed=networks, model_names=model_names, metrics=metrics
        )
    )
    app.include_router(standard_routes(queries))
    app.include_router(lmcache_routes(_lmcache(picker.fleet, live.in_force, model_names, registry)))
    app.include_router(score_routes(scores))
    app.include_router(decision_routes(answers))
    app.include_router(audit_routes(answers))
    app.include_router(endpoint_routes(picker.fleet, answers))
    app.include_router(config_routes(live))
    app.include_router(weight_routes(live, picker.records.decisions, answers))
    app.include_router(policy_routes(live, answers))
    app.include_router(capacities_routes(live, answers))
    app.include_router(live_routes(feed, metrics))
    app.include_router(index_routes(picker.fleet))
    app.include_router(capacity_routes(observers.capacity))
    app.include_router(recorder_routes(observers.recorder))
    app.include_router(shadow_routes(observers, answers))
    app.include_router(doctor_routes(picker.fleet, live, registry, state))
    app.include_router(replica_routes(state.replicas, live))
    app.include_router(process_routes(registry, state.why_not_ready))
    app.include_router(ui_routes())
    describe(app, tokens)
    app.include_router(reference_routes(app.openapi))
    door = QuestionDoor(app, questions=questions, reader=picker.reader, metrics=metrics)
    return _guarded(door, live.in_force, tokens, metrics, reviews)


def _lmcache(
    fleet: Fleet, config: KVAtlasConfig, model_names: frozenset[str], registry: CollectorRegistry
) -> LmcachePublishers | None:
    """Return what takes batches of LMCache's servers, None if that is off."""
    if not config.lmcache.accept_events:
        return None
    publishers = LmcachePublishers(fleet, config.lmcache.instances, model_names)
    registry.register(StateCollector(publishers.families))
    return publishers


def _guarded(
    door: QuestionDoor,
    config: KVAtlasConfig,
    tokens: Tokens,
    metrics: RestMetrics,
    reviews: MetricsReviews | None,
) -> RestApp:
    """Return `door` behind its guards; a call passes the last one first."""
    limits, tls = config.rest, config.server.tls
    calls = CallLimit(door, max_calls=limits.max_pending_requests, metrics=metrics)
    auth = BearerAuth(
        BodyReception(calls, config=limits, metrics=metrics), wanted=tokens.wanted, metrics=metrics
    )
    opened = OpenCalls(
        auth,
        wanted=tokens.wanted,
        hosts=HostNames(limits.allowed_hosts, own=(socket.gethostname(),)),
        has_certificates=bool(tls.client_ca_file) and tls.http,
        metrics=metrics,
    )
    app = opened if reviews is None else ReviewAuth(opened, reviews=reviews)
    at_once = AnswersAtOnce(door, (opened.admits, auth.admits, calls.admits), max_bytes=limits.max_body_bytes)
    return RestApp(ServerErrorMiddleware(app, handler=unexpected), at_once)


def metrics_app(
    registry: CollectorRegistry,
    auth: AuthConfig,
    metrics: RestMetrics,
    reviews: MetricsReviews | None = None,
) -> Starlette:
    """Return an application with `/metrics` alone, for a listener of its own.

    Args:
        registry: metrics shown.
        auth: names the file with the token.
        metrics: counts refusals.
        reviews: see `rest_app`.

    Raises:
        AuthError: a file with a token cannot be used.
    """
    exposition = Exposition(registry)

    async def show(_request: Request) -> Response:
        return await exposition.page()

    app = Starlette(routes=[Route(METRICS_PATH, show)])
    if reviews is not None:
        app.add_middleware(ReviewAuth, reviews=reviews)
    if wanted := Tokens(auth).of_metrics:
        app.add_middleware(BearerAuth, wanted=lambda _method, _path: wanted, metrics=metrics)
    return app
