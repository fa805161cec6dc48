"""`p2p-source-producer`: the server from which blocks are pulled."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.scorers.core.base import Rng
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.p2p_source import P2P_SOURCE
from support.candidates import BLOCK_SIZE, endpoint, held, load, no_chance
from support.plans import config
from support.rating import decide
from support.stages import ALWAYS, server, staged

HEADER = "x-kv-cache-source-host-port"
PRECISE = "precise-prefix-cache-producer"
REQUEST = RequestView(model="m", now=0.0, n_tokens=10 * BLOCK_SIZE)


def plan_with(**parameters: Any) -> Plan:
    """Return a plan of one profile, which picks the server with the shortest queue."""
    return make_plan(config("queue-scorer", PRECISE, {"type": P2P_SOURCE, "parameters": parameters}))


def source(plan: Plan, *fleet: Candidate, rng: Rng = no_chance) -> str | None:
    placement = decide(plan.profile, REQUEST, fleet, rng=rng).placement
    assert placement is not None
    return placement.headers.get(HEADER)


def caching(name: str, *, gpu: int = 0, cpu: int = 0, waiting: int = 0) -> Candidate:
    return endpoint(name, of=load(waiting=waiting), prefix=held(gpu=gpu, cpu=cpu))


@pytest.mark.parametrize(
    ("parameters", "fleet", "expected"),
    [
        pytest.param({}, [caching("a"), caching("b", gpu=3, waiting=1)], "b:8000", id="another_has_more"),
        pytest.param({}, [caching("a")], None, id="nobody_has_anything"),
        pytest.param({}, [caching("a", gpu=3), caching("b", gpu=3, waiting=1)], None, id="it_has_as_much"),
        pytest.param(
            {"minCachedTokenDelta": 33},
            [caching("a", gpu=1), caching("b", gpu=3, waiting=1)],
            None,
            id="another_has_too_little_more",
        ),
        pytest.param(
            {"minCachedTokenDelta": 32},
            [caching("a", gpu=1), caching("b", gpu=3, waiting=1)],
            "b:8000",
            id="another_has_just_enough_more",
        ),
        pytest.param(
            {},
            [caching("a"), caching("b", gpu=3, waiting=1), caching("c", gpu=5, waiting=2)],
            "c:8000",
            id="one_has_two_blocks_more_than_the_other",
        ),
        pytest.param(
            {"prefixMatchInfoProducerName": PRECISE},
            [caching("a"), caching("b", gpu=9, waiting=1), caching("c", cpu=2, waiting=2)],
            "c:8000",
            id="only_blocks_in_cpu_memory_can_be_sent",
        ),
        pytest.param(
            {"prefixMatchInfoProducerName": PRECISE},
            [caching("a", gpu=4), caching("b", cpu=4, waiting=1)],
            None,
            id="all_blocks_of_the_computing_server_count",
        ),
        pytest.param({}, [endpoint("a"), endpoint("b")], None, id="prompt_has_no_blocks"),
    ],
)
def test_source_is_the_server_that_can_send_most(
    parameters: dict[str, Any], fleet: list[Candidate], expected: str | None
) -> None:
    assert source(plan_with(**parameters), *fleet) == expected


def test_longer_queue_makes_a_source_less_likely() -> None:
    fleet = caching("a"), caching("b", gpu=5, waiting=1), caching("c", gpu=6, waiting=3)
    plan, rng = plan_with(), Random(0).random

    drawn = Counter(source(plan, *fleet, rng=rng) for _ in range(300))

    assert drawn.keys() == {"b:8000", "c:8000"}
    assert drawn["b:8000"] / 300 == pytest.approx(2 / 3, abs=0.1)


def test_prefill_server_computes_if_the_request_has_one() -> None:
    plan = staged(
        ALWAYS,
        P2P_SOURCE,
        names=("decode", "prefill"),
        deciders={"prefill": ALWAYS},
    )
    fleet = (
        server("d", "decode", cached=4),
        server("p", "prefill"),
        server("q", "prefill", cached=4, waiting=1),
    )

    assert source(plan, *fleet) == "d:8000"


def test_answering_server_computes_if_the_prefill_profile_has_another_name() -> None:
    plan = staged(
        ALWAYS,
        {"type": P2P_SOURCE, "parameters": {"prefillProfileName": "other"}},
        names=("decode", "prefill"),
        deciders={"prefill": ALWAYS},
    )
    fleet = server("d", "decode", cached=4), server("p", "prefill", cached=4)

    assert source(plan, *fleet) is None


def test_request_that_is_refused_has_no_source() -> None:
    plan = make_plan(config("queue-scorer", "encode-filter", P2P_SOURCE))

    assert decide(plan.profile, REQUEST, [caching("a", gpu=3)], rng=no_chance).picked == ()


def test_unknown_producer_is_refused() -> None:
    with pytest.raises(SchedulingError, match=r"prefixMatchInfoProducerName: found 'none'"):
        plan_with(prefixMatchInfoProducerName="none")
