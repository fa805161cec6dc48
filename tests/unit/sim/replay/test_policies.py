from __future__ import annotations

from array import array
from random import Random

import pytest

from kvatlas.indexer.match import PrefixMatch, RankMatch
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.scorers.core.model import Candidate, InFlightLoad, Load, RequestView
from kvatlas.sim.errors import ReplayError
from kvatlas.sim.replay.dynamo_cost import DynamoCostScorer, dynamo_profile
from kvatlas.sim.replay.indexed_router import IndexedRouter
from kvatlas.sim.replay.policies import POLICIES, Policy, make_router, named_policy
from kvatlas.sim.replay.router import RandomChoice, RoundRobin, RouteRequest, SessionHash
from support.rating import decide, rated
from support.traces import make_fleet
from support.tree import ROOT


def make_request(session: str = "", *, servers: int = 3) -> RouteRequest:
    loads = {f"server-{number}": Load(0, 0, 0.0, 0.0) for number in range(servers)}
    return RouteRequest(0, 0.0, array("I", [1]), session, loads)


def test_round_robin_takes_every_server_in_turn() -> None:
    router = RoundRobin()

    assert [router.route(make_request()) for _ in range(4)] == [
        "server-0",
        "server-1",
        "server-2",
        "server-0",
    ]


def test_random_choice_takes_every_server_at_times() -> None:
    router = RandomChoice(Random(1))

    assert {router.route(make_request()) for _ in range(50)} == {"server-0", "server-1", "server-2"}


def test_session_stays_where_it_is_when_a_server_joins_unless_it_moves_there() -> None:
    router, sessions = SessionHash(), [f"session-{number}" for number in range(200)]

    before = [router.route(make_request(session)) for session in sessions]
    after = [router.route(make_request(session, servers=4)) for session in sessions]

    assert set(before) == {"server-0", "server-1", "server-2"}
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"server-3"}
    assert 25 < len(moved) < 75


def test_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ReplayError, match="found policy 'best', want one of round-robin, random, "):
        named_policy("best")
    assert [named_policy(name).name for name in POLICIES] == list(POLICIES)


def test_capacities_of_a_file_are_in_blocks_before_several_are_simulated_as_one() -> None:
    policy = Policy("tiered", load_scheduled(ROOT / "configs" / "tiered-v1.yaml").config)
    fleet = make_fleet(gpu_blocks=100)

    found: list[list[int | None]] = []
    for granularity in (1, 4):
        router = make_router(policy, fleet.coarser(granularity), granularity=granularity, rng=Random(1))
        assert isinstance(router, IndexedRouter)
        found.append([tier.capacity for tier in router.atlas.occupancy("server-0")][:2])

    assert found == [[100, 82_000], [25, 20_500]]


def make_candidate(name: str, union: tuple[int, ...], *, ahead: int, usage: float) -> Candidate:
    held = RankMatch(tier_blocks=union, union_blocks=union, usable_blocks=sum(union))
    return Candidate(
        name=name,
        address=name,
        load=Load(0, 0, usage, 0.0),
        prefix=PrefixMatch(tiers=("gpu", "cpu", "storage"), block_size=16, n_blocks=20, held=held),
        in_flight=InFlightLoad(1, ahead),
    )


@pytest.mark.parametrize(
    ("union", "ahead", "usage", "cost"),
    [
        pytest.param((0, 0, 0), 0, 0.0, 20.0, id="nothing_cached"),
        pytest.param((8, 0, 0), 0, 0.0, 12.0, id="device_blocks_save_themselves"),
        pytest.param((8, 4, 0), 0, 0.0, 9.0, id="host_blocks_beyond_save_three_quarters"),
        pytest.param((8, 4, 4), 0, 0.0, 8.0, id="disk_blocks_a_quarter"),
        pytest.param((20, 0, 0), 160, 0.0, 10.0, id="prefill_ahead_counts"),
        pytest.param((20, 0, 0), 0, 0.5, 50.0, id="decode_blocks_count"),
        pytest.param((24, 0, 0), 0, 0.1, 10.0, id="credit_saves_no_more_than_the_prefill"),
    ],
)
def test_dynamo_cost_is_the_formula(union: tuple[int, ...], ahead: int, usage: float, cost: float) -> None:
    scorer = DynamoCostScorer(block_size=16, gpu_blocks=100)

    (rating,) = rated(
        scorer, RequestView("", 0.0, 320), [make_candidate("a", union, ahead=ahead, usage=usage)]
    )

    assert rating.raw == pytest.approx(cost)
    assert rating.score == pytest.approx(1 / (1 + cost))


def test_dynamo_profile_picks_the_lowest_cost() -> None:
    candidates = [
        make_candidate("a", (4, 0, 0), ahead=0, usage=0.0),
        make_candidate("b", (12, 0, 0), ahead=0, usage=0.0),
    ]

    decision = decide(
        dynamo_profile(block_size=16, gpu_blocks=100), RequestView("", 0.0, 320), candidates, rng=lambda: 0.0
    )

    assert decision.picked[0] == "b"
    bare = Candidate(name="c", address="c")
    assert (
        rated(DynamoCostScorer(block_size=16, gpu_blocks=9), RequestView("", 0.0, 32), [bare])[0].raw == 2.0
    )
