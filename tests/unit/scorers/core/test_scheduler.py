"""Several profiles and a handler: what acts once, what each profile's plugins are told, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest

from kvatlas.scorers.core.base import Rng, RunProfile
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.counterfactual import leaders
from kvatlas.scorers.core.decision import PREFILL, Decision, Stage
from kvatlas.scorers.core.headers import StageHeaders
from kvatlas.scorers.core.kept_table import KeptTable
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Verdicts
from kvatlas.scorers.core.scheduler import Scheduler
from kvatlas.scorers.deciders.always import AlwaysDecider
from kvatlas.scorers.errors import NoCandidatesError, ProfileError
from kvatlas.scorers.filters.roles import decode_filter, prefill_filter
from kvatlas.scorers.handlers.disagg import DisaggHandler, HandledProfiles
from kvatlas.scorers.queue import QueueScorer
from support.candidates import no_chance
from support.rating import decide
from support.stages import FLEET, server

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
HANDLER = DisaggHandler(HandledProfiles(prefill="prefill"), prefill=AlwaysDecider())


class Learner(QueueScorer):
    """A scorer that writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str, float | None]] = []

    def picked(self, request: RequestView, decision: Decision) -> None:  # noqa: ARG002 (LearnsFromPicks)
        self.told.append(("picked", decision.picked[0], None))

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        self.told.append(("answered", decision.picked[0], ttft_s))

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        self.told.append(("ended", decision.picked[0], tpot_s))

    def response_headers(self, decision: Decision) -> dict[str, str]:
        return {"x-by": decision.picked[0]}


def profile(role: str, scorer: QueueScorer | None = None) -> Profile:
    roles = decode_filter() if role == "decode" else prefill_filter()
    return Profile([("queue", scorer or QueueScorer(), 1.0)], MaxScorePicker(), [("roles", roles)])


def test_plugins_are_told_of_the_stage_that_they_decided() -> None:
    decode, prefill = Learner(), Learner()
    scheduler = Scheduler(
        {"decode": profile("decode", decode), "prefill": profile("prefill", prefill)}, HANDLER
    )
    decision = decide(scheduler, REQUEST, FLEET)

    assert scheduler.picked(REQUEST, decision) == ()
    assert scheduler.answered(decision, ttft_s=0.5) == ()
    assert scheduler.ended(decision, tpot_s=0.1) == ()

    assert decode.told == [("picked", "d1", None), ("ended", "d1", 0.1)]
    assert prefill.told == [("picked", "p0", None), ("answered", "p0", 0.5), ("ended", "p0", None)]
    assert scheduler.response_headers(decision) == ({"x-by": "d1"}, ())


def test_what_acts_once_is_told_of_the_decision_that_routed_the_request() -> None:
    once = Without()
    common = Profile([], MaxScorePicker(), [("screen", once)], screeners=["screen"])
    scheduler = Scheduler(
        {"decode": profile("decode"), "prefill": profile("prefill")}, HANDLER, common=common
    )
    decision = decide(scheduler, REQUEST, FLEET)

    scheduler.picked(REQUEST, decision)
    scheduler.answered(decision, ttft_s=0.5)
    scheduler.ended(decision, tpot_s=0.1)

    assert once.told == [decision, decision, decision]


def test_decision_of_another_configuration_is_the_first_profiles() -> None:
    learner = Learner()
    scheduler = Scheduler({"decode": profile("decode", learner)}, HANDLER)

    scheduler.picked(REQUEST, decide(profile("decode"), REQUEST, FLEET))

    assert learner.told == [("picked", "d1", None)]


def test_screeners_drop_once_for_all_profiles() -> None:
    common = Profile([], MaxScorePicker(), [("screen", Without("p0", "d1"))], screeners=["screen"])
    scheduler = Scheduler(
        {"decode": profile("decode"), "prefill": profile("prefill")}, HANDLER, common=common
    )

    decision = decide(scheduler, REQUEST, FLEET)

    assert decision.picked == ("d0",)
    assert [stage.decision.picked for stage in decision.stages] == [("p1",)]
    assert {name: each.by for name, each in decision.dropped.items()} == {
        "d1": "screen",
        "p0": "screen",
        "p1": "roles",
        "e0": "roles",
    }
    assert decision.filters == ("screen", "roles")


def test_request_whose_candidates_are_all_screened_runs_no_profile() -> None:
    common = Profile(
        [], MaxScorePicker(), [("screen", Without(*(each.name for each in FLEET)))], screeners=["screen"]
    )
    scheduler = Scheduler({"decode": profile("decode")}, HANDLER, common=common)

    decision = decide(scheduler, REQUEST, FLEET)

    assert decision.picked == ()
    assert scheduler.is_screened(decision)


def test_faults_of_what_acts_once_are_of_the_decision() -> None:
    common = Profile([], MaxScorePicker(), [("screen", Raising())], screeners=["screen"])
    scheduler = Scheduler(
        {"decode": profile("decode"), "prefill": profile("prefill")}, HANDLER, common=common
    )

    decision = decide(scheduler, REQUEST, FLEET)

    assert decision.picked == ("d1",)
    assert [(each.name, each.reason) for each in decision.faults] == [("screen", "raised")]


def test_kept_decision_has_one_table_for_all_stages() -> None:
    scheduler = Scheduler({"decode": profile("decode"), "prefill": profile("prefill")}, HANDLER)
    decision = decide(scheduler, REQUEST, FLEET)

    kept = decision.lasting()

    (stage,) = kept.stages
    assert isinstance(kept.table, KeptTable)
    assert stage.decision.table is kept.table
    assert kept.n_bytes > kept.n_own_bytes + stage.decision.n_own_bytes > kept.n_own_bytes
    assert stage.decision.scored == decision.stages[0].decision.scored


def test_other_weights_are_of_a_profile() -> None:
    scheduler = Scheduler({"decode": profile("decode"), "prefill": profile("prefill")}, HANDLER)
    decision = decide(scheduler, REQUEST, FLEET)

    assert [name for name, _, _ in scheduler.scorers] == ["decode/queue", "prefill/queue"]
    assert leaders(decision, {"decode/queue": -1.0}) == ("d0",)
    assert leaders(decision, {"prefill/queue": -1.0, "queue": -1.0}) == ("d1",)


def test_handler_sees_all_candidates_of_all_stages() -> None:
    handler = Seeing()

    decide(Scheduler({"any": profile("decode")}, handler), REQUEST, FLEET)

    assert handler.seen == [each.name for each in FLEET]


def test_scheduler_needs_a_profile_and_candidates() -> None:
    with pytest.raises(ProfileError, match="at least one profile"):
        Scheduler({}, HANDLER)
    with pytest.raises(NoCandidatesError):
        Scheduler({"decode": profile("decode")}, HANDLER).decide(REQUEST, Candidates.of([]), rng=no_chance)


def test_headers_are_of_the_named_profiles() -> None:
    decision = decide(profile("prefill"), REQUEST, [server("p", "prefill")])
    stages = [Stage(PREFILL, "first", decision), Stage("encode", "media", decision)]

    assert StageHeaders("first", "media").of(stages) == {
        "x-prefiller-host-port": "p:8000",
        "x-encoder-hosts-ports": "p:8000",
    }
    assert StageHeaders().of(stages) == {}


class Without:
    """A filter that drops endpoints by name, and keeps the decisions that it is told of."""

    type = "without"

    def __init__(self, *names: str) -> None:
        self.names = names
        self.told: list[Decision] = []

    def picked(self, request: RequestView, decision: Decision) -> None:  # noqa: ARG002 (LearnsFromPicks)
        self.told.append(decision)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:  # noqa: ARG002 (LearnsFromAnswers)
        self.told.append(decision)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:  # noqa: ARG002 (LearnsFromEnds)
        self.told.append(decision)

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        keep = np.array([name not in self.names for name in candidates.names])
        return Verdicts(keep, lambda dropped: ["screened"] * len(dropped))


class Raising(Without):
    """A filter that raises."""

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        raise LookupError("no such zone")


class Seeing:
    """A handler that notes the candidates."""

    type = "seeing"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def place(
        self,
        request: RequestView,  # noqa: ARG002 (Handler)
        candidates: Candidates,
        run: RunProfile,
        *,
        rng: Rng,  # noqa: ARG002 (Handler)
    ) -> Decision:
        self.seen = list(candidates.names)
        return run("any")
