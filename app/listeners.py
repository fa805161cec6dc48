"""Listeners of the process: ext-proc, gRPC health, REST and metrics."""

from __future__ import annotations

import logging
import os
import resource
import ssl
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from ..api.acceptor import ConnectionLimits
from ..api.descriptors import PER_RANK, process_budget
from ..api.extproc.configured import make_ext_proc, thread_count
from ..api.extproc.health import HealthService
from ..api.extproc.server import health_listener
from ..api.extproc.stream import StreamReports
from ..api.http2.library import installed_library
from ..api.http2.metrics import TransportMetrics
from ..api.http2.native import obstacle
from ..api.rest.answers import Answers, OwnAnswers
from ..api.rest.app import metrics_app, rest_app
from ..api.rest.feed import LiveFeed
from ..api.rest.frame import frame_pieces
from ..api.rest.listener import HttpListener
from ..api.rest.metrics import RestMetrics
from ..api.rest.process import ProcessState
from ..api.rest.protocol import AtOnce, leave
from ..api.rest.reviewed import MetricsReviews
from ..api.services.configured import make_services
from ..api.tls.certificates import make_certificates, make_metrics_certificates
from ..api.tls.http import http_context
from ..api.tls.metrics import tls_families
from ..api.tls.mismatches import Mismatches, OnMismatch
from ..configs.address import HostPort
from ..configs.listeners import RestConfig, ServerConfig
from ..configs.schema import KVAtlasConfig
from ..fleet.registered import Registry
from ..routing.feedback import Feedback
from ..routing.observers.observers import Observers
from ..routing.picker import Picker
from ..routing.plan.live import LiveConfig
from .replicas.together import Together

if TYPE_CHECKING:
    from ..api.tracing.router import TracedRouter

log = logging.getLogger(__name__)

EXT_PROC = "extProc"
LISTENERS = (EXT_PROC, "health", "rest", "metrics")
"""Names of the listeners, which are their configuration keys."""


class Listeners:
    """All listeners, by the configuration at the start; with a certificate all but plain health use TLS.

    Args:
        live: the configuration.
        picker: routes requests.
        feedback: receives the ends of requests.
        observers: shown over REST.
        model_names: served names and aliases.
        health: readiness of the process.
        registry: metrics of the whole process.
        together: the other replicas, whose answers REST includes, and on which its changes hold too; None if there are none.
        tracing: routes by the picker and writes spans of the requests of gateways; None if there are no spans.

    Raises:
        TlsError: the certificate cannot be used.
        AuthError: the file with the bearer token cannot be used.
        ListenError: this machine lacks the configured transport.
    """

    def __init__(
        self,
        live: LiveConfig,
        *,
        picker: Picker,
        feedback: Feedback,
        observers: Observers,
        model_names: frozenset[str],
        health: HealthService,
        state: ProcessState,
        registry: CollectorRegistry,
        together: Together | None,
        tracing: TracedRouter | None = None,
    ) -> None:
        server, ext_proc = live.in_force.server, live.in_force.ext_proc
        self._budget = process_budget(live.in_force)
        if self._budget.shortage:
            log.warning("%s", self._budget.shortage)
        self._certificates = make_certificates(server.tls, by_default=ext_proc.compat == "llm-d")
        self._mismatches = Mismatches()
        transport_metrics = TransportMetrics(registry)
        self._ext_proc = make_ext_proc(
            ext_proc,
            picker if tracing is None else tracing,
            health,
            registry,
            services=make_services(picker),
            certificates=self._certificates,
            max_connections=self._budget.connections.get("server.extProc", ext_proc.max_connections),
            n_threads=thread_count(ext_proc.threads, n_processes=server.workers),
            transport_metrics=transport_metrics,
            reports=StreamReports(
                on_begun=feedback.begun,
                on_named=feedback.named,
                on_complete=feedback.ended if tracing is None else tracing.completed(feedback.ended),
            ),
            on_mismatch=self._mismatches.at("server.extProc"),
        )
        if self._ext_proc.transport == "grpc" and ext_proc.transport == "auto":
            log.warning(
                "ext-proc runs on grpc.aio, at several times the cost of http2 and without its limits for hostile peers: "
                "libnghttp2.so.14 (Debian: libnghttp2-14), for TLS libssl.so.3 (Debian: libssl3 or libssl3t64), or the part "
                "of kvatlas that is built with a C++20 compiler is missing: %s",
                obstacle(with_tls=self._certificates is not None),
            )
        _warn_of_old_library(self._ext_proc.transport)
        self._health = health_listener(health, self._ext_proc.transport, transport_metrics)
        rest_metrics = RestMetrics(registry)
        self._feed = LiveFeed(
            lambda: frame_pieces(picker, live, ready=health.ready),
            max_viewers=live.in_force.rest.max_live_viewers,
            metrics=rest_metrics,
        )
        self._reviews = (
            MetricsReviews(live.in_force, os.environ, rest_metrics) if server.auth.metrics_review else None
        )
        alone = OwnAnswers(picker.records.decisions, picker.fleet, live)
        answers: Answers = together.answers(alone) if together is not None else alone
        registered = Registry(picker.fleet, max_ranks=_max_registered(live.in_force.rest))
        rest = rest_app(
            picker=picker,
            answers=answers,
            observers=observers,
            live=live,
            instances=together.registrations(registered) if together is not None else registered,
            model_names=model_names,
            registry=registry,
            metrics=rest_metrics,
            feed=self._feed,
            state=state,
            reviews=self._reviews,
        )
        tls = partial(http_context, server.tls, self._certificates)
        self._rest = self._http_listener(
            "server.rest", rest.asgi, live.in_force, rest_metrics, tls, rest.at_once
        )
        self._metrics_certificates = own = make_metrics_certificates(server)
        if own is not None:
            tls = partial(http_context, own.config, own)
        metrics = metrics_app(registry, server.auth, rest_metrics, self._reviews)
        self._metrics = self._http_listener("server.metrics", metrics, live.in_force, rest_metrics, tls)

    async def start(self, server: ServerConfig, names: Collection[str] = LISTENERS) -> dict[str, int]:
        """Open the listeners of these names and return their ports by configuration key; one that is off is absent.

        Workers share the ports of extProc and health.

        Raises:
            ListenError: an address is taken; the ones before it stay open until `stop`.
        """
        if self._reviews is not None and "metrics" in names:
            await self._reviews.start()
        ports: dict[str, int] = {}
        is_shared = server.workers > 1
        for name, address, start in (
            (EXT_PROC, server.ext_proc, partial(self._ext_proc.start, is_shared=is_shared)),
            ("health", server.health, partial(self._health.start, is_shared=is_shared)),
            ("rest", server.rest, self._rest.start),
            ("metrics", server.metrics, self._metrics.start),
        ):
            if address and name in names:
                where = HostPort.parse(address, lowest_port=0)
                ports[name] = await start(where.host, where.port)
                log.info("%s listens on %s:%d", name, where.host, ports[name])
        return ports

    async def drain(self, grace_s: float) -> None:
        """Refuse new requests and wait at most `grace_s` seconds for those in flight, responses included."""
        await self._ext_proc.stop(grace_s)

    async def stop(self) -> None:
        """Close what is left after `drain`."""
        await self._health.stop(0)
        self._feed.close()
        await self._rest.stop()
        await self._metrics.stop()
        if self._reviews is not None:
            await self._reviews.stop()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of TLS."""
        certificates = (self._certificates, self._metrics_certificates)
        return tls_families((each for each in certificates if each is not None), self._mismatches)

    def _http_listener(
        self,
        setting: str,
        app: ASGIApp,
        config: KVAtlasConfig,
        metrics: RestMetrics,
        tls: Callable[[OnMismatch], ssl.SSLContext | None],
        at_once: AtOnce = leave,
    ) -> HttpListener:
        on_mismatch = self._mismatches.at(setting)
        n_connections = self._budget.connections.get(setting, config.rest.max_connections)
        return HttpListener(
            setting,
            app,
            tls(on_mismatch),
            on_mismatch=on_mismatch,
            limits=ConnectionLimits(n_connections, config.rest.request_timeout),
            on_refused=metrics.connection_refused,
            at_once=at_once,
        )


def _warn_of_old_library(transport: str) -> None:
    library = installed_library() if transport == "http2" else None
    if library is not None and library.unfixed:
        log.warning(
            "libnghttp2 %s is open to %s: update it to 1.61 or later, or to the security update of the distribution",
            library.version,
            " and ".join(library.unfixed),
        )


def _max_registered(rest: RestConfig) -> int:
    """Return the bound on registered ranks: the other half of the open files is for connections and other endpoints."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_bounded = soft != resource.RLIM_INFINITY
    return min(rest.max_registered, soft // 2 // PER_RANK) if is_bounded else rest.max_registered
