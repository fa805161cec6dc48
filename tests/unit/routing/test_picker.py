"""The picker: bookings, answers that teach, refusals, and tiers that are known from routing."""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.schema import AdmissionConfig
from kvatlas.configs.scraping import MetricsScrapeConfig
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings
from kvatlas.fleet.settings import FleetSettings
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.tiers import TierSource, TierSpec, TierTable
from kvatlas.routing.admission import Admission
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.routing.feedback import Feedback
from kvatlas.routing.metrics import RoutingMetrics
from kvatlas.routing.outcome import Completion, Outcome, Response, ResponseBegun
from kvatlas.routing.picker import Picker
from kvatlas.routing.policy import Policy
from kvatlas.routing.records import Records
from kvatlas.routing.router import Refusal, RefusalCode, Route, RoutingRequest
from kvatlas.scorers.core.base import Rng
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import InFlightLoad, Load, RequestView
from kvatlas.scorers.core.prefix_source import OneTier
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.filters.roles import decode_filter
from kvatlas.scorers.prefix_cache import PrefixCacheScorer
from kvatlas.scorers.queue import QueueScorer
from kvatlas.tokenization.pipeline import PromptPipeline
from support.candidates import no_chance

NOWHERE = "tcp://127.0.0.1:1"


class Learner(PrefixCacheScorer):
    """A prefix scorer that writes down how long first tokens took."""

    def __init__(self) -> None:
        super().__init__(OneTier("gpu"))
        self.times: list[float] = []
        self.n_refused = 0

    def refused(self, decision: Decision) -> None:  # noqa: ARG002 (LearnsFromRefusals)
        self.n_refused += 1

    def answered(self, decision: Decision, *, ttft_s: float) -> None:  # noqa: ARG002 (LearnsFromAnswers)
        self.times.append(ttft_s)


@pytest.fixture
def source() -> TierSource | None:
    return None


@pytest.fixture
async def fleet(source: TierSource | None) -> AsyncGenerator[Fleet]:
    loads, subscriber = LoadTable(stale_after_s=2), Subscriber(SubscriberOptions())
    fleet = Fleet(
        atlas=Atlas(tiers=TierTable([TierSpec("gpu", ("GPU",), source=source)]), seed=0, core=REFERENCE),
        subscriber=subscriber,
        scraper=Scraper(
            loads=loads,
            settings=ScrapeSettings(Intervals(1, 1), timeout_s=1),
            clock=lambda: 0,
            rng=lambda: 0,
        ),
        loads=loads,
        metrics=FleetMetrics(CollectorRegistry()),
        settings=FleetSettings(
            trust_credit={trust: float(trust is Trust.LIVE) for trust in Trust},
            capacities=(None,),
            auto_capacity_tiers=(),
            engines=EngineCatalog(MetricsScrapeConfig()),
        ),
    )
    for number, name in enumerate("ab", start=1):
        address = EndpointAddresses(
            HostPort(f"10.0.0.{number}", 8000), None, (RankAddresses(0, NOWHERE, None),)
        )
        fleet.add(name, address, {})
    yield fleet
    for endpoint in list(fleet):
        await fleet.remove(endpoint.name)
    await subscriber.close()


@pytest.fixture
def learner() -> Learner:
    return Learner()


@pytest.fixture
def picker(fleet: Fleet, learner: Learner) -> Picker:
    profile = Profile([("prefix", learner, 1.0)], MaxScorePicker(2), [("roles", decode_filter())])
    return Picker(
        pipeline=PromptPipeline(None),
        fleet=fleet,
        policy=Policy(1, profile),
        records=make_records(),
        rng=no_chance,
    )


def make_records() -> Records:
    return Records(RoutingMetrics(CollectorRegistry()), DecisionLog(max_count=10, max_bytes=2**20))


def completion(n_tokens: int) -> RoutingRequest:
    body = json.dumps({"model": "m", "prompt": list(range(n_tokens))}).encode()
    return RoutingRequest(path="/v1/completions", body=body)


def completed(route: Route) -> Completion:
    return Completion("", route, Outcome.COMPLETED)


async def routed(picker: Picker, n_tokens: int = 40) -> Route:
    route = await picker.route(completion(n_tokens))
    assert isinstance(route, Route)
    return route


async def test_request_is_booked_until_its_answer_begins_and_ends(picker: Picker, fleet: Fleet) -> None:
    route = await routed(picker)
    picked = route.decision.picked[0]
    loads = [fleet.in_flight.of(picked)]
    feedback = Feedback(picker)
    feedback.begun(ResponseBegun(route, is_first_token=False, served=None))
    loads.append(fleet.in_flight.of(picked))
    feedback.ended(completed(route))
    feedback.ended(completed(route))
    loads.append(fleet.in_flight.of(picked))

    assert loads == [InFlightLoad(1, 40), InFlightLoad(1, 0), InFlightLoad(0, 0)]


async def test_fleet_knows_how_old_a_load_decisions_accept(picker: Picker, fleet: Fleet) -> None:
    prefix_only, by_queue = picker.policy.profile, Profile([("queue", QueueScorer(), 1.0)], MaxScorePicker())
    batch = Admission(AdmissionConfig(objectives={"batch": -1}))
    discovered: dict[str, int] = {}
    assert fleet.known_loads.max_age_s() == math.inf

    for policy in (Policy(2, by_queue), Policy(3, prefix_only, batch)):
        picker.use(policy)
        assert fleet.known_loads.max_age_s() == 0

    picker.use(Policy(4, prefix_only, Admission(AdmissionConfig(), discovered=discovered)))
    assert fleet.known_loads.max_age_s() == math.inf
    discovered["batch"] = -1
    assert fleet.known_loads.max_age_s() == 0


@pytest.mark.parametrize(
    ("is_first_token", "served", "n_times"),
    [
        pytest.param(True, None, 1, id="streamed"),
        pytest.param(True, "10.0.0.1:8000", 1, id="by_the_picked_endpoint"),
        pytest.param(True, "10.0.0.2:8000", 0, id="by_another_endpoint"),
        pytest.param(False, None, 0, id="not_streamed"),
    ],
)
async def test_only_first_tokens_of_the_picked_endpoint_teach(
    picker: Picker, learner: Learner, *, is_first_token: bool, served: str | None, n_times: int
) -> None:
    route = replace(await routed(picker), addresses=("10.0.0.1:8000",))

    Feedback(picker).begun(ResponseBegun(route, is_first_token=is_first_token, served=served))

    assert len(learner.times) == n_times
    assert all(0 <= each < 60 for each in learner.times)


@pytest.mark.parametrize(
    ("outcome", "status", "served", "n_refused"),
    [
        pytest.param(Outcome.COMPLETED, 200, None, 0, id="served"),
        pytest.param(Outcome.ROUTED, None, None, 0, id="not_shown"),
        pytest.param(Outcome.COMPLETED, 400, None, 1, id="refused"),
        pytest.param(Outcome.COMPLETED, 503, "10.0.0.1:8000", 1, id="overloaded"),
        pytest.param(Outcome.COMPLETED, 200, "10.0.0.2:8000", 1, id="served_by_another_endpoint"),
        pytest.param(Outcome.ABORTED, None, None, 1, id="cancelled_before_the_first_byte"),
    ],
)
async def test_plugins_are_told_of_requests_that_the_picked_endpoint_did_not_compute(
    picker: Picker, learner: Learner, outcome: Outcome, status: int | None, served: str | None, n_refused: int
) -> None:
    route = replace(await routed(picker), addresses=("10.0.0.1:8000",))

    Feedback(picker).ended(Completion("", route, outcome, served=served, response=Response(status=status)))

    assert learner.n_refused == n_refused


async def test_route_that_was_not_booked_is_left_alone(picker: Picker, learner: Learner) -> None:
    route = replace(await routed(picker), booking=None)

    Feedback(picker).begun(ResponseBegun(route, is_first_token=True, served=None))
    Feedback(picker).ended(completed(route))

    assert learner.times == []


@pytest.mark.parametrize(
    ("outcome", "is_hidden", "n_open"),
    [
        pytest.param(Outcome.ROUTED, False, 0, id="the_gateway_shows_only_that_it_ended"),
        pytest.param(Outcome.COMPLETED, False, 0, id="the_response_has_no_body"),
        pytest.param(Outcome.ROUTED, True, 1, id="the_response_may_still_come"),
    ],
)
async def test_prediction_waits_no_longer_for_a_response_when_its_request_has_ended(
    picker: Picker, fleet: Fleet, outcome: Outcome, *, is_hidden: bool, n_open: int
) -> None:
    now, fleet.predictions.ttl_s = time.monotonic(), 2.0
    prediction = fleet.predictions.foreign(
        "a", array("Q", [1, 2]), block_size=16, lookahead=0, now=now, ttl_s=2, wait_s=600
    )
    route = replace(await routed(picker), prediction=prediction)

    Feedback(picker).ended(Completion("", route, outcome, is_hidden=is_hidden))
    fleet.predictions.expire(now=now + 3)

    assert fleet.predictions.n_open == n_open


async def test_prediction_of_a_hidden_response_waits_no_longer_than_the_engine_does(
    picker: Picker, fleet: Fleet
) -> None:
    now, fleet.predictions.ttl_s = time.monotonic(), 2.0
    prediction = fleet.predictions.foreign(
        "a", array("Q", [1, 2]), block_size=16, lookahead=0, now=now, ttl_s=2, wait_s=600
    )
    route = replace(await routed(picker), prediction=prediction)
    Feedback(picker).ended(Completion("", route, Outcome.ROUTED, is_hidden=True))
    for age_s, waiting in ((10, 1), (20, 0)):
        load = Load(waiting, 0, 0.0, updated_at=now + age_s)
        fleet.in_flight.settle(lambda _, load=load: load, now=now + age_s)  # type: ignore[misc]
        fleet.predictions.expire(now=now + age_s + 3)
        assert fleet.predictions.n_open == waiting


class Failing(Learner):
    """Fails at what it is told."""

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        raise RuntimeError(f"secret {decision.model} {ttft_s}")


async def test_fault_of_a_plugin_is_said_once_without_its_text(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    profile = Profile([("fails", Failing(), 1.0)], MaxScorePicker())
    picker = Picker(
        pipeline=PromptPipeline(None),
        fleet=fleet,
        policy=Policy(1, profile),
        records=make_records(),
        rng=no_chance,
    )

    for _ in range(3):
        Feedback(picker).begun(ResponseBegun(await routed(picker), is_first_token=True, served=None))

    (said,) = [record.getMessage() for record in caplog.records if "plugin fails" in record.getMessage()]
    assert "(raised)" in said
    assert "secret" not in said


async def test_every_picked_endpoint_is_named_best_first(picker: Picker) -> None:
    assert set((await routed(picker)).addresses) == {"10.0.0.1:8000", "10.0.0.2:8000"}


async def test_request_is_refused_when_filters_leave_nobody(picker: Picker, fleet: Fleet) -> None:
    for endpoint in fleet:
        fleet.relabel(endpoint.name, {"llm-d.ai/role": "prefill"})

    refusal = await picker.route(completion(5))

    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.dropped_reason) == (RefusalCode.RESOURCE_EXHAUSTED, "rejected-saturated")


class Closed:
    """An admitter of requests that may not be shed."""

    type = "closed"

    def admit(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> str | None:  # noqa: ARG002 (Admitter)
        return "no room" if request.priority < 0 else None


class AllAdmitted(Admission):
    """Admission that leaves saturation to the admitters."""

    def check(self, priority: int, fleet: Fleet) -> Refusal | None:  # noqa: ARG002 (Admission)
        return None


async def test_request_that_an_admitter_refuses_is_counted_and_kept(picker: Picker, fleet: Fleet) -> None:
    profile = Profile([], MaxScorePicker(), admitters=[("door", Closed())])
    picker.use(Policy(1, profile, AllAdmitted(AdmissionConfig(objectives={"batch": -1}))))
    batch = replace(completion(40), headers={"x-llm-d-inference-objective": "batch"}, request_id="shed")

    admitted, refused = await picker.route(completion(40)), await picker.route(batch)

    assert isinstance(admitted, Route)
    assert refused == Refusal(
        RefusalCode.RESOURCE_EXHAUSTED,
        "request cannot be admitted: no room",
        dropped_reason="rejected-saturated",
    )
    assert {fleet.in_flight.own(name).requests for name in "ab"} == {0, 1}
    kept = picker.records.decisions.get("shed")
    assert kept is not None
    assert {each.by for each in kept.decision.dropped.values()} == {"door"}


async def test_request_is_refused_when_the_subset_leaves_nobody(picker: Picker) -> None:
    refusal = await picker.route(RoutingRequest(path="/", has_body=False, subset=frozenset({"10.9.9.9"})))

    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("source", [TierSource.ROUTING])
async def test_tier_configured_to_be_learned_from_routing_is_though_events_are_expected(
    picker: Picker, fleet: Fleet
) -> None:
    for name in "ab":
        fleet.facts_changed(
            name, EngineFacts(n_engines=1, block_size=16, num_gpu_blocks=64, process_start_s=1.0)
        )
    first = await routed(picker)

    second = await routed(picker)

    assert second.decision.picked[0] == first.decision.picked[0]
    best = second.decision.first
    assert (best.candidate.credit, best.total) == (1.0, 1.0), "what is learned here needs no trust in events"


@pytest.mark.parametrize("source", [TierSource.ROUTING])
async def test_restarted_engine_is_learned_anew(picker: Picker, fleet: Fleet) -> None:
    for started in (1.0, 2.0):
        for name in "ab":
            facts = EngineFacts(n_engines=1, block_size=16, num_gpu_blocks=64, process_start_s=started)
            fleet.facts_changed(name, facts)
        first = await routed(picker)
        assert first.decision.first.total == 0.0, "nothing is known at the start"
        assert (await routed(picker)).decision.first.total == 1.0


async def test_tier_known_from_events_is_not_learned_from_routing(picker: Picker, fleet: Fleet) -> None:
    for name in "ab":
        fleet.facts_changed(name, EngineFacts(n_engines=1, block_size=16, num_gpu_blocks=64))
    for _ in range(2):
        assert (await routed(picker)).decision.first.total == 0.0


async def test_every_decision_on_a_request_is_kept_also_when_nobody_is_left(
    picker: Picker, fleet: Fleet
) -> None:
    route = await routed(picker)
    picker.decide(model="m", prefix=None)
    for endpoint in fleet:
        fleet.relabel(endpoint.name, {"llm-d.ai/role": "prefill"})
    await picker.route(replace(completion(5), request_id="refused"))

    kept = picker.records.decisions.page(limit=10)
    assert [(each.request_id, each.decision.picked) for each in kept] == [
        ("refused", ()),
        ("", route.decision.picked),
    ]
    assert kept[0].decision.scored[0].dropped is not None
    assert kept[0].decision.filters == ("roles",)
