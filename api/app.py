"""The composition root: configuration in, a running process out."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence

from ..configs.address import HostPort
from ..configs.decisions import DecisionsConfig
from ..configs.schema import KVAtlasConfig
from ..events.sockets import spawn
from ..events.subscriber import Subscriber
from ..events.subscription import SubscriberOptions
from ..indexer.atlas import Atlas
from ..indexer.factory import index_core
from ..indexer.tiers import TierTable
from .admission import Admission
from .audits import audit_families, audited
from .capacities import CapacityDrift
from .config_file import ConfigFiles
from .decisions import DecisionLog, decision_families
from .errors import ConfigRefusedError
from .extproc.configured import make_ext_proc
from .extproc.health import HealthService
from .extproc.listener import GrpcListener
from .extproc.stream import AnswerBegun, Completion
from .fleet import Fleet
from .fleet_metrics import fleet_families
from .kubernetes.cluster import Cluster
from .live import LiveConfig
from .metrics import Metrics, StateCollector
from .observers import Observers
from .picker import Picker, Policy
from .reconcile import Roster, Wanted, wanted_endpoints
from .registration import Registry
from .rest.answers import OwnAnswers
from .rest.app import metrics_app, rest_app
from .rest.feed import LiveFeed
from .rest.frame import frame_pieces
from .rest.listener import HttpListener
from .rest.metrics import RestMetrics
from .scheduling.metrics import latency_families
from .scheduling.plan import Plan
from .scheduling.tiers import tier_specs
from .scrape.loads import LoadTable
from .scrape.report import EngineFacts
from .scrape.scraper import Scraper
from .served_models import ServedModels
from .services.configured import make_services
from .settings import fleet_settings, scrape_settings
from .snapshots import Snapshots
from .tier_sources import log_source
from .tls.certificates import make_certificates
from .tls.http import http_context
from .tls.metrics import tls_families
from .tokenization_metrics import tokenization_families
from .workers.crew import Crew

log = logging.getLogger(__name__)

HISTORY_PATIENCE_S = 5.0
"""Wait for an endpoint that does not answer, before the process calls itself ready without its history."""

HOUSEKEEPING_S = 1.0
"""Time between two looks at what only passing time decides."""

SWEPT_AT_ONCE = 4096
"""Keys of removed endpoints whose memory is freed in one go: some 0.3 ms in which no request is answered."""

SWEEP_PAUSE_S = 0.01
"""Time between two sweeps while keys are left."""

NOTICE_S = 2.5
"""Time that a gateway gets to see that the process is not ready, before new requests are refused: two health checks of
the shipped Envoy configurations, and a half."""

DRAIN_S = 30.0
"""Time that requests in flight get when the process is told to stop."""


class App:
    """One kvatlas process.

    Args:
        config: validated configuration, with the endpoints that its `endpoints.file` lists.
        files: where it came from, to follow their changes; None for a configuration that stays.
        crew: the other workers of the same kvatlas; None for none.

    Raises:
        TokenizerLoadError: the tokenizer cannot be loaded.
        SchedulingError: the plugins make no profile.
        AccessError: no API server can be reached, and one is needed.
        TlsError: the certificate cannot be used.
        AuthError: the file with the bearer token cannot be used.
        RecorderError: the recorder's secret cannot be used.
    """

    def __init__(
        self, config: KVAtlasConfig, files: ConfigFiles | None = None, *, crew: Crew | None = None
    ) -> None:
        self._crew = crew
        self._metrics = Metrics()
        self.live = LiveConfig(
            config,
            files=files,
            prepare=self._prepare,
            switch=self._switch,
            settle=self._settle,
            metrics=self._metrics,
            present=crew.present if crew is not None else None,
        )
        """The configuration in force."""
        for note in self.live.plan.notes:
            log.info("%s", note)
        config = self.live.in_force
        self.ports: dict[str, int] = {}
        """Where the process listens, by configuration key; absent when switched off."""
        self._health = HealthService(elects=config.leader_election.enabled)
        self._settled = self._draining = False
        # The library's own threads would come on top of those that are configured.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tiers = TierTable(tier_specs(config.tiers))
        core = index_core(os.environ.get("KVATLAS_INDEX") or None)
        self._metrics.index_native.set(core.name == "native")
        if core.name == "reference":
            log.warning(
                "the index runs in Python: slower, same answers; install kvatlas where a C++20 compiler is"
            )
        atlas = Atlas(
            tiers=tiers,
            seed=config.index.hash_seed,
            core=core,
            on_source=lambda endpoint, rank, change: log_source(tiers, endpoint, rank, change),
        )
        self._loads = LoadTable(stale_after_s=config.metrics_scrape.stale_after)
        self._subscriber = Subscriber(
            SubscriberOptions(topic_prefix=config.events.topic_prefix, decode=core.decode_batch)
        )
        self._scraper = Scraper(
            loads=self._loads,
            on_facts=self._facts_changed,
            settings=scrape_settings(config.metrics_scrape),
            clock=time.monotonic,
            rng=random.random,
        )
        self.fleet = Fleet(
            atlas=atlas,
            subscriber=self._subscriber,
            scraper=self._scraper,
            loads=self._loads,
            metrics=self._metrics,
            settings=fleet_settings(config),
            siblings=crew.loads if crew is not None else None,
        )
        self._roster = Roster(self.fleet)
        self._models = ServedModels(
            config, endpoint_urls=self.fleet.answering_urls, on_outcome=self._metrics.remote_tokenized
        )
        self._snapshots = Snapshots(
            config.snapshot,
            fleet=self.fleet,
            models=self._models.names,
            wanted=self._wanted,
            metrics=self._metrics.snapshot,
        )
        self._cluster = Cluster(
            config,
            fleet=self.fleet,
            snapshots=self._snapshots,
            on_change=self._update_readiness,
            environment=os.environ,
        )
        self._observers = Observers(config, self.fleet)
        self._picker = picker = Picker(
            pipeline=self._models,
            fleet=self.fleet,
            policy=_policy(self.live.plan, self.live.generation, self._cluster.priorities),
            metrics=self._metrics,
            decisions=_decision_log(config.decisions, worker=crew.worker if crew is not None else 0),
            rng=random.random,
            n_fallbacks=config.ext_proc.fallback_endpoints,
            rules=self._cluster.rewrites,
            endpoint_labels=self._models.endpoint_labels if self._models.differ else None,
            observers=self._observers,
        )
        self._drift = CapacityDrift()
        certificates = make_certificates(config.server.tls, by_default=config.ext_proc.compat == "llm-d")
        tls = http_context(config.server.tls, certificates)
        for families in (
            lambda: decision_families(picker.decisions),
            lambda: audit_families(self.fleet, now=time.monotonic()),
            lambda: fleet_families(self.fleet, self._subscriber),
            lambda: tokenization_families(self._models.tokenizations),
            lambda: latency_families(self.live.plan.profile),
            self._cluster.families,
            self._observers.families,
            lambda: tls_families(certificates),
        ):
            self._metrics.registry.register(StateCollector(families))
        self._routed = False
        self._ext_proc = make_ext_proc(
            config.ext_proc,
            picker,
            self._health,
            self._metrics,
            services=make_services(picker),
            certificates=certificates,
            on_begun=self._answer_begun,
            on_complete=self._completed,
        )
        if self._ext_proc.transport == "grpc" and config.ext_proc.transport == "auto":
            log.warning(
                "ext-proc runs on grpc.aio, at several times the cost of http2: libnghttp2.so.14 (Debian: libnghttp2-14) "
                "or the part of kvatlas that is built with a C++20 compiler is missing"
            )
        self._health_only = GrpcListener("server.health", (self._health.handler(),))
        rest_metrics = RestMetrics(self._metrics.registry)
        self._feed = LiveFeed(
            lambda: frame_pieces(picker, self.live, ready=self._health.ready),
            max_viewers=config.rest.max_live_viewers,
            metrics=rest_metrics,
        )
        answers = OwnAnswers(picker.decisions, self.fleet, self.live)
        rest = rest_app(
            picker=picker,
            answers=crew.join(answers, self.live) if crew is not None else answers,
            observers=self._observers,
            live=self.live,
            instances=Registry(self.fleet),
            model_names=self._models.names,
            registry=self._metrics.registry,
            metrics=rest_metrics,
            feed=self._feed,
            is_ready=lambda: self._health.ready,
        )
        self._rest = HttpListener("server.rest", rest, tls)
        self._metrics_only = HttpListener(
            "server.metrics", metrics_app(self._metrics.registry, config.server.auth, rest_metrics), tls
        )
        self._reload = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen, and follow every configured endpoint.

        Raises:
            ListenError: an address is taken; nothing is left listening.
            SubscriptionError: an event address cannot be used; nothing is left running.
        """
        server = self.live.in_force.server
        listeners = (
            ("extProc", server.ext_proc, self._ext_proc),
            ("health", server.health, self._health_only),
            ("rest", server.rest, self._rest),
            ("metrics", server.metrics, self._metrics_only),
        )
        try:
            for name, address, listener in listeners:
                if address:
                    where = HostPort.parse(address, lowest_port=0)
                    self.ports[name] = await listener.start(where.host, where.port)
                    log.info("%s listens on %s:%d", name, where.host, self.ports[name])
            await self._models.start()
            self._bind_events()
            await self._snapshots.read()
            with self._snapshots.loading():
                for name, wanted in wanted_endpoints(self.live.in_force).items():
                    self._roster.add(name, wanted, saved=self._snapshots.take(name, wanted))
                    await asyncio.sleep(0)  # loading takes its time, and health checks want answers
        except BaseException:
            await self.stop(grace_s=0)
            raise
        await self._cluster.start()
        self._observers.start()
        self._tasks = [
            spawn(self._watch_readiness(), "readiness"),
            spawn(self._keep_house(), "housekeeping"),
            spawn(self._sweep(), "sweep"),
            *self._configuration_tasks(),
            spawn(self._models.watch(), "tokenizer files"),
        ]

    async def stop(self, *, grace_s: float = DRAIN_S) -> None:
        """Say not ready, let requests in flight end for at most `grace_s` seconds, and stop everything.

        A gateway that uses this process is first given the time to notice, and its requests are answered meanwhile. Who
        leads hands over before that, so that at any time somebody is ready.
        """
        if grace_s:
            await self._cluster.hand_over(notice_s=NOTICE_S)
        self._draining = True
        self._update_readiness()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.resign()
        await self._snapshots.stop()  # at once: who drains for long may be killed
        if (self._routed or self._health.is_used) and grace_s:
            await asyncio.sleep(NOTICE_S)
        await self._ext_proc.stop(grace_s)
        await self._observers.stop()
        await self._health_only.stop(0)
        self._feed.close()
        await self._rest.stop()
        await self._metrics_only.stop()
        for endpoint in list(self.fleet):
            await self.fleet.remove(endpoint.name)
        await self._scraper.stop()
        await self._models.stop()
        await self._subscriber.close()

    async def run(self, *, ends: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """Start, serve until a signal `ends` it, drain and stop. A second signal stops at once. SIGHUP loads the files."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in ends:
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        await self.start()
        log.info("following %d endpoint(s)", len(self.fleet))
        await stop.wait()
        for number in ends:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        log.info("stopping: finishing requests in flight, at most %.0f s", DRAIN_S)
        await self.stop()
        log.info("stopped")

    def _wanted(self, name: str) -> Wanted | None:
        """An endpoint as the configuration or the cluster has it; None for one that somebody registered."""
        return self._roster.wanted.get(name) or self._cluster.endpoints.get(name)

    def _bind_events(self) -> None:
        """Listen for the engines' publishers, where these connect to us."""
        events = self.live.in_force.events
        if events.mode == "bind":
            address = self._subscriber.bind(events.bind)
            scheme, _, where = address.partition("://")
            if scheme == "tcp":
                self.ports["events"] = int(where.rpartition(":")[2])
            log.info("events listens on %s", where)

    async def _watch_readiness(self) -> None:
        while not self._cluster.is_synced:  # noqa: ASYNC110 - once, at start
            await asyncio.sleep(0.05)
        self._snapshots.begin()
        while not self.fleet.settled(  # noqa: ASYNC110 - once, at start
            now=time.monotonic(), patience_s=HISTORY_PATIENCE_S
        ):
            await asyncio.sleep(0.05)
        self._settled = True
        self._update_readiness()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self.fleet.tick(now=time.monotonic())
            self._drift.look(self.fleet)
            self._update_readiness()

    async def _sweep(self) -> None:
        while True:
            n_left = self.fleet.atlas.sweep(n_keys=SWEPT_AT_ONCE)
            await asyncio.sleep(SWEEP_PAUSE_S if n_left else HOUSEKEEPING_S)

    def _configuration_tasks(self) -> Iterator[asyncio.Task[None]]:
        """Of several workers one follows the files, and sees that the others have what it has."""
        if self._crew is None or self._crew.leads:
            yield spawn(self.live.watch(self._reload), "configuration")
        if self._crew is not None and self._crew.leads:
            yield spawn(self._crew.lead(), "workers")

    async def _prepare(self, plan: Plan) -> None:
        """Connect to the publishers of new endpoints."""
        try:
            for _ in self._roster.preparing(wanted_endpoints(plan.config)):
                await asyncio.sleep(0)
        except ConfigRefusedError:
            self.fleet.publishers.prepared()
            raise

    def _switch(self, plan: Plan, generation: int) -> None:
        """See `live.Switch`."""
        config = plan.config
        try:
            self._roster.bring_to(wanted_endpoints(config))
        finally:
            self.fleet.publishers.prepared()
        self.fleet.configure(fleet_settings(config))
        self._scraper.configure(scrape_settings(config.metrics_scrape))
        self._loads.stale_after_s = config.metrics_scrape.stale_after
        self._picker.use(_policy(plan, generation, self._cluster.priorities))
        self._cluster.configure(config.events)

    async def _settle(self) -> None:
        """Free the sockets of endpoints that are gone, and evict what smaller tiers cannot hold."""
        await self.fleet.release()
        for _ in self.fleet.shrinking():
            await asyncio.sleep(0)

    def _answer_begun(self, answer: AnswerBegun) -> None:
        self._picker.answer_begun(answer.route, is_first_token=answer.is_first_token, served=answer.served)

    def _completed(self, completion: Completion) -> None:
        self._routed = True
        self._observers.ended(completion)
        if completion.route is not None:
            self._picker.answer_ended(
                completion.route,
                was_computed=completion.was_computed,
                is_hidden=completion.is_hidden,
            )
            if (found := audited(completion, self.fleet)) is not None:
                self.fleet.audited(found, now=time.monotonic())
                self._picker.decisions.audited(completion.route.decision, found)

    def _facts_changed(self, name: str, facts: EngineFacts) -> None:
        self.fleet.facts_changed(name, facts)

    def _update_readiness(self) -> None:
        ready = self._settled and self._cluster.is_ready and not self._draining
        if ready != self._health.ready:
            self._health.ready = ready
            self._metrics.ready.set(ready)
            log.info("ready" if ready else "not ready")


def _decision_log(config: DecisionsConfig, *, worker: int) -> DecisionLog:
    return DecisionLog(max_count=config.max_count, max_bytes=config.max_mebibytes * 2**20, worker=worker)


def _policy(plan: Plan, generation: int, priorities: Mapping[str, int]) -> Policy:
    idle_interval_s = plan.config.metrics_scrape.idle_interval_s
    admission = Admission(plan.config.admission, discovered=priorities, idle_interval_s=idle_interval_s)
    return Policy(generation, plan.profile, admission)
