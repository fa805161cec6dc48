"""Feedback over live changes: plugins see the answer and the end of each request of which they saw the pick, once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.routing.feedback import Feedback
from kvatlas.routing.outcome import Completion, Outcome, Response, ResponseBegun, Usage
from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.routing.router import Route, RoutingRequest
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.scheduler import Deciding
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.latency.fleet_cost import FleetCostScorer
from kvatlas.scorers.latency.lines import BOOKED, N_AHEAD, TOKENS_AHEAD, TOKENS_HELD, WORK
from support.picker_parts import PickerParts, picker_parts
from support.plans import config
from support.stages import ALWAYS
from support.told import OFFERED, Told

FILTERS = ("decode-filter", "prefill-filter")
ROLES = {"d": "decode", "p": "prefill"}
BODY = json.dumps({"model": "m", "prompt": list(range(40)), "stream": True}).encode()
PLUGINS = ("x", "y", "z")

Used = dict[str, tuple[str, ...]]
"""Profile -> names of its plugins that write down their callbacks."""
Call = tuple[str, int]
"""Callback and identity of its decision."""


@pytest.fixture(autouse=True, scope="module")
def _told() -> Iterator[None]:
    """Offer `Told` alone: a plan would read the metadata of all installed packages, which takes 0.1 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvatlas.routing.plan.entry_points.entry_points", OFFERED.select)
        yield


@st.composite
def profiles(draw: st.DrawFn) -> Used:
    """Draw no plugins at all, one profile, or one for each of two stages."""
    stages = draw(st.integers(0, 2))
    names = [draw(st.sampled_from(each)) for each in (("a", "b"), ("c", "d"))[:stages]]
    return {name: tuple(draw(st.sets(st.sampled_from(PLUGINS)))) for name in names}


def configured(used: Used, versions: tuple[int, ...], weight: float) -> KVAtlasConfig:
    """Return a configuration with these profiles; two of them are for decode and prefill on different servers."""
    if not used:
        return KVAtlasConfig(api_version="kvatlas/v1")
    told = [
        {"type": "told", "name": name, "parameters": {"version": version}}
        for name, version in zip(PLUGINS, versions, strict=True)
    ]
    sections: list[dict[str, Any]] = [
        {"name": name, "plugins": [{"pluginRef": each, "weight": weight} for each in plugins]}
        for name, plugins in used.items()
    ]
    if len(used) == 1:
        sections[0]["plugins"].append({"pluginRef": "max-score-picker"})
        return config(*told, "max-score-picker", schedulingProfiles=sections)
    for section, each in zip(sections, FILTERS, strict=True):
        section["plugins"].append({"pluginRef": each})
    return config(*told, *FILTERS, ALWAYS, staging(used), schedulingProfiles=sections)


def staging(names: Iterable[str]) -> dict[str, Any]:
    """Return the handler that has the first profile decode and the second one prefill."""
    stages = dict(zip(("decode", "prefill"), names, strict=True))
    parameters = {"profiles": stages, "deciders": {"prefill": ALWAYS}}
    return {"type": "disagg-profile-handler", "parameters": parameters}


@asynccontextmanager
async def with_roles() -> AsyncGenerator[PickerParts]:
    """Yield a picker over a decode server and a prefill server."""
    async with picker_parts(dict.fromkeys(ROLES, 0)) as parts:
        for name, role in ROLES.items():
            parts.fleet.relabel(name, {ROLE_LABEL: role})
        yield parts


async def routed(parts: PickerParts) -> Route:
    route = await parts.picker.route(RoutingRequest(path="/v1/completions", body=BODY))
    assert isinstance(route, Route)
    return route


@dataclass
class UnderWay:
    """A request under way.

    Attributes:
        route: its route.
        profile: that dispatched it.
        told: the plugins that saw its pick, each with its stage's decision.
        has_begun: whether its response has begun.
    """

    route: Route
    profile: weakref.ref[Deciding]
    told: list[tuple[Told, Decision]]
    has_begun: bool = False


@pytest.mark.parametrize(
    "after",
    [
        pytest.param({"a": "decode-filter", "c": "prefill-filter"}, id="same_profiles"),
        pytest.param({"a": "decode-filter", "d": "prefill-filter"}, id="profile_renamed"),
        pytest.param({"a": "decode-filter"}, id="stages_together"),
    ],
)
async def test_accounts_of_a_scorer_that_is_kept_are_empty_once_all_requests_ended(
    after: dict[str, str],
) -> None:
    def plan(used: dict[str, str], before: Plan | None = None) -> Plan:
        sections = [
            {"name": name, "plugins": [{"pluginRef": "fleet-cost-scorer"}, {"pluginRef": each}]}
            for name, each in used.items()
        ]
        plugins: list[str | dict[str, Any]] = ["fleet-cost-scorer", *FILTERS]
        if len(used) > 1:
            plugins += [ALWAYS, staging(used)]
        tiers = [{"name": "gpu"}, {"name": "cpu"}]
        return make_plan(config(*plugins, schedulingProfiles=sections, tiers=tiers), before=before)

    first = plan({"a": "decode-filter", "c": "prefill-filter"})
    second = plan(after, first)
    scorer = second.built["scorer", "fleet-cost-scorer"].plugin
    assert isinstance(scorer, FleetCostScorer)
    accounts = scorer.model.accounts
    async with with_roles() as parts:
        feedback = Feedback(parts.picker)
        parts.picker.use(dataclasses.replace(parts.picker.policy, profile=first.profile))
        routes = [await routed(parts) for _ in range(5)]
        lines = accounts.columns(routes[0].decision.candidates)
        assert lines[N_AHEAD].tolist() == [0, 5]
        parts.picker.use(dataclasses.replace(parts.picker.policy, profile=second.profile))
        for route in routes:
            feedback.begun(ResponseBegun(route, is_first_token=True, served=None))
            feedback.ended(Completion("", route, Outcome.COMPLETED))

    assert len(accounts) == 0
    lines = accounts.columns(routes[0].decision.candidates)
    assert not lines[[WORK, BOOKED, N_AHEAD, TOKENS_AHEAD, TOKENS_HELD]].any()


class LiveFeedback(RuleBasedStateMachine):
    """Requests and changes of the configuration, in any order.

    A plugin in use must see what is `owed`. One that is no longer used may see what it would be owed, and nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner, self.stack = asyncio.Runner(), AsyncExitStack()
        self.parts: PickerParts = self.runner.run(self.stack.enter_async_context(with_roles()))
        self.feedback = Feedback(self.parts.picker)
        self.used: Used = {}
        self.plan: Plan = make_plan(configured({}, (), 1.0))
        self.open: list[UnderWay] = []
        self.plugins: dict[int, Told] = {}
        self.owed: dict[int, list[Call]] = {}
        self.allowed: dict[int, list[Call]] = {}
        self.past: list[weakref.ref[Deciding]] = []

    @initialize(used=profiles())
    def start(self, used: Used) -> None:
        self.change(used, (1, 1, 1), 1.0)

    @rule(
        used=profiles(),
        versions=st.tuples(*[st.sampled_from([1, 1, 1, 2])] * len(PLUGINS)),
        weight=st.sampled_from([1.0, 2.0]),
    )
    def change(self, used: Used, versions: tuple[int, ...], weight: float) -> None:
        self.past.append(weakref.ref(self.plan.profile))
        self.used, self.plan = used, make_plan(configured(used, versions, weight), before=self.plan)
        policy = self.parts.picker.policy
        self.parts.picker.use(
            dataclasses.replace(policy, generation=policy.generation + 1, profile=self.plan.profile)
        )

    @rule()
    def request(self) -> None:
        route = self.runner.run(routed(self.parts))
        told = list(self.choosing(route.decision))
        self.owe("picked", told)
        self.open.append(UnderWay(route, weakref.ref(self.plan.profile), told))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 99))
    def begin(self, number: int) -> None:
        request = self.open[number % len(self.open)]
        if request.has_begun:
            return
        request.has_begun = True
        self.feedback.begun(ResponseBegun(request.route, is_first_token=True, served=None))
        computing = request.route.decision.computing
        self.owe("answered", [each for each in request.told if each[1] is computing])

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 99), outcome=st.sampled_from([Outcome.COMPLETED, Outcome.ABORTED]))
    def end(self, number: int, outcome: Outcome) -> None:
        request = self.open.pop(number % len(self.open))
        response = Response(status=200, usage=Usage(output_tokens=5))
        self.feedback.ended(Completion("", request.route, outcome, response=response))
        if outcome is Outcome.COMPLETED:
            answering = request.route.decision
            self.owe("generated", [each for each in request.told if each[1] is answering])
        self.owe("ended", request.told)

    @invariant()
    def plugins_in_use_saw_what_they_are_owed_once(self) -> None:
        for key, plugin in self.plugins.items():
            calls = [(name, id(decision)) for name, decision in plugin.calls]
            assert len(calls) == len(set(calls))
            assert set(self.owed[key]) <= set(calls) <= set(self.allowed[key])
            if len(calls) == len(self.allowed[key]):
                assert calls == self.allowed[key], "in their order"

    @invariant()
    def past_profiles_live_as_long_as_their_requests(self) -> None:
        living = {id(self.plan.profile), *(id(each.profile()) for each in self.open)}
        self.past = [each for each in self.past if each() is not None]
        assert {id(each()) for each in self.past} <= living

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def choosing(self, decision: Decision) -> Iterator[tuple[Told, Decision]]:
        """Yield the plugins that took part in a decision, each with its stage's."""
        if not self.used:
            return
        stages = {stage.profile: stage.decision for stage in decision.stages}
        for profile, plugins in self.used.items():
            for name in plugins:
                plugin = self.plan.built["scorer", name].plugin
                assert isinstance(plugin, Told)
                yield plugin, stages.get(profile, decision)

    def owe(self, name: str, told: list[tuple[Told, Decision]]) -> None:
        """Note that plugins are owed a callback, if they are in use."""
        in_use = {id(each.plugin) for each in self.plan.built.values()}
        for plugin, decision in told:
            key, call = id(plugin), (name, id(decision))
            self.plugins[key] = plugin
            self.allowed.setdefault(key, []).append(call)
            owed = self.owed.setdefault(key, [])
            if key in in_use:
                owed.append(call)


TestLiveFeedback = LiveFeedback.TestCase
TestLiveFeedback.settings = settings(stateful_step_count=30)
