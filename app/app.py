"""The composition root: configuration in, a running process out."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector

from ..api.extproc.health import HealthService
from ..api.rest.process import ProcessState
from ..api.tracing.counts import SpanCounts, span_families
from ..configs.decisions import DecisionsConfig
from ..configs.schema import KVAtlasConfig
from ..configs.tracing import TracingConfig
from ..events.tasks import keep
from ..fleet.audit_metrics import audit_families
from ..fleet.configured import ConfiguredFleet
from ..fleet.families import StateCollector
from ..fleet.kubernetes.cluster import Cluster
from ..fleet.metrics import FleetMetrics, SnapshotMetrics
from ..fleet.model_lists import ModelLists, serving_urls
from ..fleet.roster import Wanted
from ..fleet.snapshots import Snapshots
from ..routing.admission import Admission
from ..routing.decision_log import NUMBER_STEP, DecisionLog, decision_families
from ..routing.feedback import Feedback
from ..routing.metrics import RoutingMetrics
from ..routing.models import ServedModels
from ..routing.observers.observers import Observers
from ..routing.picker import Picker, PickerOptions
from ..routing.plan.config_files import ConfigFiles, ConfigFollower
from ..routing.plan.live import LiveConfig
from ..routing.plan.metrics import ConfigMetrics, latency_families
from ..routing.plan.plan import Plan
from ..routing.policy import Policy
from ..routing.records import Records
from ..tokenization.remote.metrics import RemoteMetrics
from .housekeeping import keep_house, sweep
from .listeners import EXT_PROC, LISTENERS, Listeners
from .proxy import Proxy
from .readiness import POLL_S, Readiness
from .replicas.pod import Place
from .replicas.replicas import Replicas
from .replicas.together import Together
from .tasks import TaskFailures
from .tokenization_metrics import tokenization_families
from .watchdog import LoopMetrics, Watchdog

if TYPE_CHECKING:
    from ..api.tracing.tracing import Tracing

log = logging.getLogger(__name__)

GC_THRESHOLDS = 10_000, 5, 200
"""Objects made since the last collection of the youngest generation, and collections of each before those of the next.

The youngest two take a few milliseconds at most; a full one follows after ten million objects that live on.
"""


class App:
    """One kvatlas process.

    Args:
        config: validated configuration, with the endpoints that its `endpoints.file` lists.
        files: its source, watched for changes; None for a configuration that never changes.
        place: place among the workers of the same kvatlas; None if it is the only one.
        on_beat: called regularly while the event loop runs; None if nobody needs it.

    Raises:
        TokenizerLoadError: the tokenizer cannot be loaded.
        SchedulingError: the plugins make no profile.
        AccessError: no API server can be reached, and one is needed.
        TlsError: the certificate cannot be used.
        AuthError: the file with the bearer token cannot be used.
        RecorderError: the recorder's secret cannot be used.
        TracingError: spans cannot be sent as the environment says.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        files: ConfigFiles | None = None,
        *,
        place: Place | None = None,
        on_beat: Callable[[], None] | None = None,
    ) -> None:
        # The tokenizer library's own threads would come on top of the configured ones.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._watchdog = Watchdog(LoopMetrics(self._registry), on_beat=on_beat)
        self._task_failures = TaskFailures(self._registry, on_fatal=self._fail)
        self._end, self._status = asyncio.Event(), 0
        self.live = LiveConfig(
            config,
            paths=files.paths if files is not None else (),
            prepare=self._prepare,
            switch=self._switch,
            settle=self._settle,
            metrics=ConfigMetrics(self._registry),
        )
        """The configuration in force."""
        self._follower = ConfigFollower(files, self.live)
        for note in self.live.plan.notes:
            log.info("%s", note)
        config = self.live.in_force
        self.ports: dict[str, int] = {}
        """Ports of the listeners by configuration key; a listener that is off is absent."""
        # The kernel would send a worker that is not ready its share of the connections to the common port.
        self._at_once = tuple(each for each in LISTENERS if place is None or each != EXT_PROC)
        self._notice_s = config.server.drain_notice
        self._drain_s = config.server.drain_timeout
        self._proxy = Proxy(config.server.proxy_admin)
        is_alone = place is None and config.replicas.transport == "none"
        self._replicas = Replicas(config, place=place) if not is_alone else None
        self._configured = ConfiguredFleet(
            config,
            FleetMetrics(self._registry),
            siblings=self._replicas.knowledge.bookings if self._replicas is not None else None,
        )
        self.fleet = self._configured.fleet
        if self._replicas is not None:
            learned = {"audit": self.fleet.audit.shared, **self.fleet.bounds.shared.sums}
            self._replicas.knowledge.follow(self.fleet.atlas, self.fleet.predictions, learned)
        self._models = ServedModels(
            config, endpoint_urls=self.fleet.answering_urls, on_outcome=RemoteMetrics(self._registry).ended
        )
        self._snapshots = Snapshots(
            config.snapshot,
            fleet=self.fleet,
            models=self._models.names,
            wanted=self._wanted,
            metrics=SnapshotMetrics(self._registry),
        )
        self._together = (
            Together(
                self._replicas,
                self._snapshots,
                self.live,
                transport="ipc" if config.replicas.transport == "none" else config.replicas.transport,
                silent_s=config.replicas.silent_after,
            )
            if self._replicas is not None
            else None
        )
        self._cluster = Cluster(
            config,
            fleet=self.fleet,
            snapshots=self._snapshots,
            on_change=self._cluster_changed,
            environment=os.environ,
        )
        self._health = HealthService(elects=config.leader_election.enabled)
        self._readiness = Readiness(
            self.fleet, self._cluster, self._health, self._registry, self._task_failures
        )
        self._observers = Observers(config, self.fleet)
        self._model_lists = ModelLists(
            lambda: serving_urls(self.fleet), lambda: self._picker.policy.requests.answers_models
        )
        self._picker = Picker(
            pipeline=self._models,
            fleet=self.fleet,
            policy=_policy(self.live.plan, self.live.generation, self._cluster.priorities),
            records=Records(
                RoutingMetrics(self._registry),
                _decision_log(config.decisions, self._replicas),
                self._observers,
            ),
            rng=random.random,
            options=PickerOptions(
                n_fallbacks=config.ext_proc.fallback_endpoints,
                rules=self._cluster.rewrites,
                endpoint_labels=self._models.endpoint_labels if self._models.differ else None,
                models=self._model_lists,
                knowledge=self._replicas.knowledge if self._replicas is not None else None,
            ),
            reader=self._models.reader,
        )
        self._feedback = Feedback(self._picker)
        self._span_counts = SpanCounts()
        self._tracing = _tracing(config.tracing, self._span_counts)
        self._listeners = Listeners(
            self.live,
            picker=self._picker,
            feedback=self._feedback,
            observers=self._observers,
            model_names=self._models.names,
            health=self._health,
            state=ProcessState(self._readiness.why_not, self._cluster, self._together),
            together=self._together,
            registry=self._registry,
            tracing=self._tracing.traced(self._picker) if self._tracing is not None else None,
        )
        self._show_state()
        self._reload = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._agreeing: list[asyncio.Task[None]] = []
        """What goes on with the other replicas, as long as these count this one as living."""

    async def start(self) -> None:
        """Open the listeners and follow every configured endpoint.

        Raises:
            ListenError: an address is taken; nothing is left listening.
            SubscriptionError: an event address cannot be used; nothing is left running.
            ReplicaError: the replicas' transport cannot be opened; nothing is left running.
        """
        asyncio.get_running_loop().set_exception_handler(self._task_failures.handle)
        try:
            if self._replicas is not None:
                self._replicas.start()  # first: siblings connect while models are loaded
            self.ports.update(await self._listeners.start(self.live.in_force.server, self._at_once))
            await self._models.start()
            if (port := self._configured.bind(self.live.in_force.events)) is not None:
                self.ports["events"] = port
            if self._together is not None:
                await self._together.read_snapshot()
            else:
                await self._snapshots.read()
            async with self.live.held() as config:
                await self._configured.fill(config, self._snapshots)
            if self._together is not None:
                await self._together.catch_up()  # so that no request is decided by another configuration
        except BaseException:
            await self.stop(grace_s=0)
            raise
        await self._cluster.start()
        self._observers.start()
        self._tasks = [
            keep(self._settle_in, "readiness"),
            keep(lambda: keep_house(self.fleet, self._readiness), "housekeeping"),
            keep(lambda: sweep(self.fleet), "sweep"),
            keep(lambda: self._follower.watch(self._reload), "configuration", needed=False),
            keep(self._models.watch, "tokenizer files", needed=False),
            keep(self._model_lists.follow, "model lists", needed=False),
        ]
        if self._together is not None:
            self._agreeing = self._together.tasks()

    async def stop(self, *, grace_s: float | None = None) -> None:
        """Drain and stop: report not ready, wait for requests in flight, then stop every part.

        A leader hands over first, so that one replica is always ready. Requests that come before gateways notice are served.

        Args:
            grace_s: longest wait for requests in flight; None: `server.drainTimeout`.
        """
        grace_s = self._drain_s if grace_s is None else grace_s
        # other workers go on beside one that failed
        is_behind_proxy = bool(grace_s) and not self._status and await self._proxy.close_connections()
        if grace_s:
            await self._cluster.hand_over(notice_s=self._notice_s)
        self._readiness.drain()
        await _ended(self._tasks)
        await self._cluster.resign()
        await self._snapshots.stop()  # first: a process that drains for long may be killed
        if is_behind_proxy:
            await self._proxy.until_quiet(self._notice_s, limit_s=self._notice_s + grace_s)
        elif (self._feedback.has_come or self._health.is_used) and grace_s:
            await asyncio.sleep(self._notice_s)
        await self._listeners.drain(grace_s)
        await _ended(self._agreeing)
        if self._replicas is not None:
            await self._replicas.stop()
        await self._observers.stop()
        await self._listeners.stop()
        await self._configured.stop()
        await self._models.stop()
        if self._tracing is not None:
            await self._tracing.stop()

    async def run(self, *, ends: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> int:
        """Serve until one of the signals `ends`, then drain and stop. A second signal stops at once; SIGHUP reloads the files.

        Returns:
            the exit status: 1 if a task failed that only a restart of the process brings back, else 0.
        """
        loop = asyncio.get_running_loop()
        for number in ends:
            loop.add_signal_handler(number, self._end.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        # one that came before is handled now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, *ends))
        await self.start()
        _collect_rarely()
        log.info("following %d endpoint(s)", len(self.fleet))
        with self._watchdog.watching():
            await self._end.wait()
            for number in ends:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
            log.info("stopping: finishing requests in flight, at most %.0f s", self._drain_s)
            await self.stop()
        log.info("stopped")
        return self._status

    def _fail(self) -> None:
        """Stop, to be started again."""
        self._status = 1
        self._end.set()

    def _wanted(self, name: str) -> Wanted | None:
        """Return an endpoint of the configuration or the cluster; None for a registered one."""
        return self._configured.endpoints.get(name) or self._cluster.endpoints.get(name)

    def _cluster_changed(self) -> None:
        self._readiness.update()

    def _show_state(self) -> None:
        """Register the metrics that are read from the parts on each scrape."""
        for families in (
            lambda: decision_families(self._picker.records.decisions),
            lambda: audit_families(self.fleet, now=time.monotonic()),
            self._configured.families,
            lambda: tokenization_families(self._models.tokenizations),
            lambda: latency_families(self.live.plan.profile),
            self._cluster.families,
            self._observers.families,
            self._listeners.families,
            lambda: span_families(self._span_counts),
            *((self._replicas.families,) if self._replicas is not None else ()),
            *((self._together.families,) if self._together is not None else ()),
        ):
            self._registry.register(StateCollector(families))

    async def _settle_in(self) -> None:
        """Begin snapshots once the endpoints are known; become ready and open the last listeners once their events are."""
        while not self._cluster.is_synced:  # noqa: ASYNC110 - once, at start
            await asyncio.sleep(POLL_S)
        self._snapshots.begin()
        await self._readiness.settle()
        await self._proxy.keep_connections()
        if self._together is not None:
            self._together.ready()
        later = set(LISTENERS).difference(self._at_once)
        self.ports.update(await self._listeners.start(self.live.in_force.server, later))

    async def _prepare(self, plan: Plan) -> None:
        await self._configured.prepare(plan.config)

    def _switch(self, plan: Plan, generation: int) -> None:
        """See `live.Switch`."""
        self._configured.bring_to(plan.config)
        self._picker.use(_policy(plan, generation, self._cluster.priorities))
        self._observers.use(plan.config)
        self._cluster.configure(plan.config.events, plan.config.metrics_scrape)

    async def _settle(self) -> None:
        await self._configured.settle()


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _collect_rarely() -> None:
    """Keep full garbage collections, which hold the loop, away from requests.

    Nearly all objects of the start live on: without freezing, each full collection visits them, 80 ms each time. Those of
    endpoints live on as well, 60 per endpoint: with Python's own thresholds, 2,000 new pods cause several full collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _decision_log(config: DecisionsConfig, replicas: Replicas | None) -> DecisionLog:
    """Return the log; its numbers differ from those of other replicas, so that lists of all have pages."""
    number = replicas.number % NUMBER_STEP if replicas is not None else 0
    return DecisionLog(max_count=config.max_count, max_bytes=config.max_mebibytes * 2**20, worker=number)


def _tracing(config: TracingConfig, counts: SpanCounts) -> Tracing | None:
    """Return what sends spans, None if no receiver is named: then its library is not loaded."""
    receiver = config.receiver(os.environ)
    if not receiver:
        return None
    from ..api.tracing.tracing import Tracing  # noqa: PLC0415 - 7 MB and 0.1 s

    return Tracing(config, os.environ, receiver, counts)


def _policy(plan: Plan, generation: int, priorities: Mapping[str, int]) -> Policy:
    idle_interval_s = plan.config.metrics_scrape.idle_interval_s
    admission = Admission(plan.config.admission, discovered=priorities, idle_interval_s=idle_interval_s)
    return Policy(generation, plan.profile, admission, plan.requests, plan.load, plan.burst)
