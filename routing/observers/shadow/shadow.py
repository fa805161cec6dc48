"""The shadow: another policy, or the profile of another file, decides on the routed requests; differences are counted."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ....configs.errors import ConfigError
from ....configs.file_watch import FileWatch
from ....configs.observers import ShadowConfig
from ....configs.schema import KVAtlasConfig
from ....events.tasks import keep
from ....fleet.errors import ConfigRefusedError
from ....scorers.core.base import Rng
from ....scorers.core.candidates import Candidates
from ....scorers.core.decision import Decision
from ....scorers.core.faults import PluginFault
from ....scorers.core.model import RequestView
from ....scorers.core.profile import Profile
from ....scorers.core.scheduler import Deciding
from ....scorers.core.shadow import Draws, Repeat, ShadowTally
from ....scorers.latency.cost import LatencyCostScorer
from ....scorers.latency.params import LatencyCostParams
from ...errors import SchedulingError
from ...plan.load import load_scheduled
from ...plan.plan import Plan, make_plan
from ...plan.rest_changes import in_place

log = logging.getLogger(__name__)

POLL_S = 0.25
"""Time between two checks of the file."""


def shadow_problem(live: KVAtlasConfig) -> str:
    """Return why the shadow that a configuration names cannot be used; empty if it can be, or if there is none.

    Reads the shadow's file.
    """
    config, found = live.shadow, None
    if config.policy is None and not config.file:
        return ""
    try:
        if config.policy is None:
            found = load_scheduled(Path(config.file)).config
        make_plan(_shadowing(config, live, found))
    except (ConfigError, ConfigRefusedError, SchedulingError) as error:
        return str(error)
    return ""


def _shadowing(config: ShadowConfig, live: KVAtlasConfig, found: KVAtlasConfig | None) -> KVAtlasConfig:
    """Return the live configuration with the shadow's policy, or with the profile of its file's content.

    Raises:
        ConfigRefusedError: the policy cannot stand in place of the live plugins.
    """
    if config.policy is not None:
        return in_place(live, config.policy)
    if found is None:
        raise ValueError("a policy or a file")
    return msgspec.structs.replace(
        live,
        policy=found.policy,
        weights=found.weights,
        plugins=found.plugins,
        scheduling_profiles=found.scheduling_profiles,
        disaggregation=found.disaggregation,
    )


class Shadow:
    """A shadow with its own plugins, which learn from the real responses. For one event loop; no locks.

    It decides after the request is routed, in the loop's next step, on the same candidates and with the same draws.

    Args:
        config: with a policy or a file.
        live: configuration in force at the start; all but its policy, weights, plugins and profiles is the shadow's too.
        rng: draws that select requests.
        clock: monotonic seconds.
        cpu: CPU seconds of this thread.
    """

    def __init__(
        self,
        config: ShadowConfig,
        live: KVAtlasConfig,
        *,
        rng: Rng = random.random,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self.config = config
        """Its settings."""
        self.refusal = "it was not read yet"
        """Why the policy or file is not in use, empty if it is."""
        self.tally = ShadowTally()
        """Requests since the file or the live configuration changed."""
        self.not_chosen = self.over_budget = 0
        """Requests without a decision of the shadow, by reason, since the start."""
        self.faults: Counter[tuple[str, str]] = Counter()
        """Plugin and reason -> results that had to be repaired."""
        self.cpu_s = 0.0
        """CPU time of its decisions."""
        self.since = clock()
        """Start of the tally."""
        self._live, self._rng, self._clock, self._cpu = live, rng, clock, cpu
        self._plan: Plan | None = None
        self._found: KVAtlasConfig | None = None  # content of the file
        self._generation = 0
        self._file = Path(config.file)
        self._watch = FileWatch(self._file)
        self._latency = LatencyCostScorer(LatencyCostParams(), [tier.name for tier in live.tiers])
        self._budget = _Budget(config.max_cpu)
        self._task: asyncio.Task[None] | None = None
        if config.policy is not None:
            self._use(None)

    @property
    def name(self) -> str:
        """The policy, or the path of the file."""
        return self.config.policy or str(self._file)

    @property
    def age_s(self) -> float:
        """Seconds since the tally began."""
        return self._clock() - self.since

    @property
    def outcomes(self) -> dict[str, int]:
        """Routed requests by the shadow's outcome."""
        tally = self.tally
        return {
            "agreed": tally.agreed,
            "disagreed": tally.disagreed,
            "refused": tally.refused,
            "not_chosen": self.not_chosen,
            "over_budget": self.over_budget,
        }

    def start(self) -> None:
        """Start following the file, if there is one."""
        if self.config.policy is None:
            self._task = keep(self._follow, "shadow", needed=False)

    def cancel(self) -> None:
        """Stop following the file, soon."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop following the file."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self, live: KVAtlasConfig) -> None:
        """Decide beside another live configuration; the shadow's plugins keep what they learned."""
        self._live = live
        self._use(self._found)

    async def look(self) -> None:
        """Look at the file, and load it when it has changed; one that cannot be used leaves the one before in force."""
        if not await asyncio.to_thread(self._watch.settled):
            return
        try:
            loaded = await asyncio.to_thread(load_scheduled, self._file)
        except ConfigError as error:
            self._refuse(error)
        else:
            self._use(loaded.config)

    def draws(self, rng: Rng) -> Draws | None:
        """Return draws for the live decision; None if they need not be repeated."""
        return Draws(rng) if self._plan is not None else None

    def routed(self, view: RequestView, decision: Decision, repeat: Repeat) -> Deciding | None:
        """Decide on a routed request, soon, with the candidates and draws of its decision.

        Returns the profile that decides, for `first_token` and `ended`: its plugins saw the pick, and another may be in use
        by then. None before there is one.
        """
        profile = self._plan.profile if self._plan is not None else None
        if profile is not None:
            asyncio.get_running_loop().call_soon(self._decide, profile, view, decision, repeat)
        return profile

    def first_token(self, decision: Decision, profile: Deciding | None, *, ttft_s: float) -> None:
        """Learn from a first token, soon; `profile` as `routed` returned it."""
        asyncio.get_running_loop().call_soon(self._learn, profile, decision, ttft_s)

    def ended(
        self,
        decision: Decision,
        profile: Deciding | None,
        *,
        tpot_s: float | None,
        n_output: int | None = None,
        is_refused: bool = False,
    ) -> None:
        """Learn from the end of a request, soon; `profile` as `routed` returned it."""
        if profile is not None:
            asyncio.get_running_loop().call_soon(self._end, profile, decision, tpot_s, n_output, is_refused)

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    @property
    def max_load_age_s(self) -> float:
        """Return the age up to which the load of endpoints with known requests will do."""
        return self._plan.profile.max_load_age_s if self._plan is not None else math.inf

    def _use(self, found: KVAtlasConfig | None) -> None:
        """Decide by the policy, or by the profile of `found`; if it makes none, the plan before stays in force."""
        self._found = found
        try:
            if self.config.policy is None and found is None:
                return
            self._plan = make_plan(_shadowing(self.config, self._live, found), before=self._plan)
        except (ConfigRefusedError, SchedulingError) as error:
            self._refuse(error)
            return
        self.refusal = ""
        self._begin()
        log.info("shadow %s decides on live requests, and routes none", self.name)

    def _refuse(self, error: Exception) -> None:
        self.refusal = str(error)
        log.warning("shadow %s is not used: %s", self.name, error)

    def _begin(self) -> None:
        self.tally, self.since = ShadowTally(), self._clock()

    def _decide(self, profile: Deciding, view: RequestView, decision: Decision, repeat: Repeat) -> None:
        if decision.config_generation != self._generation:
            self._generation = decision.config_generation
            self._begin()
        if self._rng() >= self.config.fraction:
            self.not_chosen += 1
        elif not self._budget.is_left(self._clock()):
            self.over_budget += 1
        else:
            begin = self._cpu()
            own = profile.decide(view, repeat.candidates, rng=repeat.draws.replay())
            self.tally.add(decision, own, self._expected_ttft_s(view, decision, own))
            self._count(own.faults)
            spent = self._cpu() - begin
            self.cpu_s += spent
            self._budget.spend(spent)
        self._count(profile.picked(view, decision))

    def _learn(self, profile: Deciding | None, decision: Decision, ttft_s: float) -> None:
        self._latency.answered(decision.computing, ttft_s=ttft_s)
        if profile is None:
            return
        # one profile knows no stages: it learns from the endpoint that computed the prompt
        learned = decision.computing if isinstance(profile, Profile) else decision
        self._count(profile.answered(learned, ttft_s=ttft_s))

    def _end(
        self,
        profile: Deciding,
        decision: Decision,
        tpot_s: float | None,
        n_output: int | None,
        is_refused: bool,  # noqa: FBT001 - call_soon has no keywords
    ) -> None:
        self._count(profile.ended(decision, tpot_s=tpot_s, n_output=n_output, is_refused=is_refused))

    def _expected_ttft_s(self, view: RequestView, live: Decision, own: Decision) -> dict[str, float]:
        """Return the times of both endpoints that compute the prompt, once learned costs predict better than initial ones."""
        if not own.picked or not any(report.is_fitted for report in self._latency.reports()):
            return {}
        picked = (live.computing.best, own.computing.best)
        expected_ms = self._latency.expected_ms(view, Candidates.of(picked)).tolist()
        return {each.name: ms / 1000.0 for each, ms in zip(picked, expected_ms, strict=True)}

    def _count(self, faults: Iterable[PluginFault]) -> None:
        for fault in faults:
            self.faults[fault.name, fault.reason] += 1


class _Budget:
    """A share of a core; unused time accumulates for at most a second.

    Args:
        share: CPU seconds per second.
    """

    def __init__(self, share: float) -> None:
        self._share = self._left = share
        self._at: float | None = None

    def is_left(self, now: float) -> bool:
        """Return whether any time is left."""
        if self._at is not None:
            self._left = min(self._share, self._left + self._share * (now - self._at))
        self._at = now
        return self._left > 0

    def spend(self, seconds: float) -> None:
        """Subtract used time."""
        self._left -= seconds
