"""What the process listens on: ext-proc, gRPC health, REST and metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from ..api.extproc.configured import make_ext_proc
from ..api.extproc.health import HealthService
from ..api.extproc.listener import GrpcListener
from ..api.rest.answers import OwnAnswers
from ..api.rest.app import metrics_app, rest_app
from ..api.rest.feed import LiveFeed
from ..api.rest.frame import frame_pieces
from ..api.rest.listener import HttpListener
from ..api.rest.metrics import RestMetrics
from ..api.services.configured import make_services
from ..api.tls.certificates import make_certificates
from ..api.tls.http import http_context
from ..api.tls.metrics import tls_families
from ..configs.address import HostPort
from ..configs.listeners import ServerConfig
from ..fleet.registered import Registry
from ..routing.feedback import Feedback
from ..routing.observers.observers import Observers
from ..routing.picker import Picker
from ..routing.plan.live import LiveConfig
from .workers.crew import Crew

log = logging.getLogger(__name__)


class Listeners:
    """By the configuration of the start; with a certificate, all but the one for health alone talk TLS.

    Args:
        live: the configuration.
        picker: routes requests.
        feedback: told of their answers.
        observers: what looks on, for REST to show.
        model_names: served names and aliases.
        health: readiness of the process.
        registry: metrics of the whole process, theirs among them.
        crew: the other workers, with whom REST answers; None for none.

    Raises:
        TlsError: the certificate cannot be used.
        AuthError: the file with the bearer token cannot be used.
        ListenError: the transport that is asked for cannot be had on this machine.
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
        registry: CollectorRegistry,
        crew: Crew | None,
    ) -> None:
        server, ext_proc = live.in_force.server, live.in_force.ext_proc
        self._certificates = make_certificates(server.tls, by_default=ext_proc.compat == "llm-d")
        tls = http_context(server.tls, self._certificates)
        self._ext_proc = make_ext_proc(
            ext_proc,
            picker,
            health,
            registry,
            services=make_services(picker),
            certificates=self._certificates,
            on_begun=feedback.begun,
            on_complete=feedback.ended,
        )
        if self._ext_proc.transport == "grpc" and ext_proc.transport == "auto":
            log.warning(
                "ext-proc runs on grpc.aio, at several times the cost of http2: libnghttp2.so.14 (Debian: libnghttp2-14) "
                "or the part of kvatlas that is built with a C++20 compiler is missing"
            )
        self._health = GrpcListener("server.health", (health.handler(),))
        rest_metrics = RestMetrics(registry)
        self._feed = LiveFeed(
            lambda: frame_pieces(picker, live, ready=health.ready),
            max_viewers=live.in_force.rest.max_live_viewers,
            metrics=rest_metrics,
        )
        answers = OwnAnswers(picker.records.decisions, picker.fleet, live)
        rest = rest_app(
            picker=picker,
            answers=crew.join(answers, live) if crew is not None else answers,
            observers=observers,
            live=live,
            instances=Registry(picker.fleet),
            model_names=model_names,
            registry=registry,
            metrics=rest_metrics,
            feed=self._feed,
            is_ready=lambda: health.ready,
        )
        self._rest = HttpListener("server.rest", rest, tls)
        self._metrics = HttpListener("server.metrics", metrics_app(registry, server.auth, rest_metrics), tls)

    async def start(self, server: ServerConfig) -> dict[str, int]:
        """Listen; returns ports by configuration key, without those that are switched off.

        Raises:
            ListenError: an address is taken; those before it listen until `stop`.
        """
        ports: dict[str, int] = {}
        for name, address, listener in (
            ("extProc", server.ext_proc, self._ext_proc),
            ("health", server.health, self._health),
            ("rest", server.rest, self._rest),
            ("metrics", server.metrics, self._metrics),
        ):
            if address:
                where = HostPort.parse(address, lowest_port=0)
                ports[name] = await listener.start(where.host, where.port)
                log.info("%s listens on %s:%d", name, where.host, ports[name])
        return ports

    async def drain(self, grace_s: float) -> None:
        """Take no new requests to route, and wait at most `grace_s` seconds for those in flight, responses included."""
        await self._ext_proc.stop(grace_s)

    async def stop(self) -> None:
        """Stop what `drain` has left."""
        await self._health.stop(0)
        self._feed.close()
        await self._rest.stop()
        await self._metrics.stop()

    def families(self) -> Iterator[Metric]:
        """Metrics of the certificate."""
        return tls_families(self._certificates)
