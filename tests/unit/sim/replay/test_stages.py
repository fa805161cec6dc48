"""Stages of a request on different servers take the time that a calculation by hand gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from kvatlas.sim import hardware
from kvatlas.sim.errors import ReplayError
from kvatlas.sim.kv_network import NetworkSpec
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import POLICIES, STAGE_POLICIES, Policy, make_router
from kvatlas.sim.replay.router import BlindRouter, OtherStages, RouteRequest
from kvatlas.sim.replay.simulation import Replay, Replayed, Served, Timing
from kvatlas.sim.roles import parse_roles
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.traces.trace import Trace
from support.traces import BLOCK, make_trace, random_trace

STEP_S, TOKEN_S, LATENCY_S, ENCODE_S = 100.0, 1.0, 3.0, 40.0
TOKENS_PER_S = 2.0
"""Bandwidth of a server's network card."""

TIMES = ServiceTimes(prefill_s_per_token=TOKEN_S, step_s=STEP_S)
PROMPT = (1, 2, 3, 4)
"""Block ids of a prompt of 16 tokens."""

DECODED_S = STEP_S + TOKEN_S
"""First step of a server that has pulled a prompt: its last token is computed again."""


def fleet_of(roles: str, **spec: object) -> FleetSpec:
    parsed = parse_roles(roles)
    network = NetworkSpec(
        server_bytes_per_s=TOKENS_PER_S * hardware.QWEN3_32B.kv_bytes_per_token, latency_s=LATENCY_S
    )
    made = FleetSpec(
        servers=len(parsed),
        roles=parsed,
        block_size=BLOCK,
        gpu_blocks=64,
        times=TIMES,
        network=network,
        encode_s=ENCODE_S,
    )
    return replace(made, **spec)  # type: ignore[arg-type]


class Fixed(BlindRouter):
    """Router that places each request as it is told."""

    def __init__(self, placements: Mapping[int, tuple[str, OtherStages]]) -> None:
        self._placements = placements

    def route(self, request: RouteRequest) -> str:
        return self._placements[request.number][0]

    def other_stages(self, number: int) -> OtherStages:
        return self._placements[number][1]


def play(trace: Trace, fleet: FleetSpec, *placements: tuple[str, OtherStages]) -> dict[int, Served]:
    router = Fixed(dict(enumerate(placements)))
    found = Replay(trace, fleet, router, timing=Timing(), rng=Random(1)).run()
    return {each.number: each for each in found.served}


def with_media(trace: Trace, n_media: int) -> Trace:
    return replace(trace, requests=[replace(each, n_media=n_media) for each in trace.requests])


def test_prompt_is_computed_sent_and_decoded_one_after_another() -> None:
    trace = make_trace((0.0, 16, PROMPT), output=3)

    found = play(trace, fleet_of("prefill=1,decode=1"), ("decode-0", OtherStages("prefill-0")))[0]

    assert found.ttft_s == STEP_S + 16 * TOKEN_S + 16 / TOKENS_PER_S + LATENCY_S + DECODED_S
    assert (found.tpot_s, found.server, found.prefill) == (STEP_S, "decode-0", "prefill-0")


def test_two_transfers_to_one_server_share_its_card() -> None:
    trace = make_trace((0.0, 16, PROMPT), (0.0, 16, (5, 6, 7, 8)), output=1)
    placements = [("decode-0", OtherStages(f"prefill-{number}")) for number in range(2)]

    found = play(trace, fleet_of("prefill=2,decode=1"), *placements)

    # Both are computed in the server's first step after they have arrived.
    alike_s = STEP_S + 16 * TOKEN_S + 2 * 16 / TOKENS_PER_S + LATENCY_S + STEP_S + 2 * TOKEN_S
    assert [found[number].ttft_s for number in range(2)] == [alike_s, alike_s]


def test_decode_server_that_has_half_of_the_prompt_pulls_the_other_half() -> None:
    trace = make_trace((0.0, 8, PROMPT[:2]), (500.0, 16, PROMPT), output=1)

    found = play(
        trace,
        fleet_of("prefill=1,decode=1"),
        ("decode-0", OtherStages()),
        ("decode-0", OtherStages("prefill-0")),
    )[1]

    assert found.ttft_s == STEP_S + 16 * TOKEN_S + 8 / TOKENS_PER_S + LATENCY_S + DECODED_S
    assert found.gpu_tokens == 0


def test_prefill_server_computes_only_what_it_lacks() -> None:
    trace = make_trace((0.0, 12, PROMPT[:3]), (1000.0, 16, PROMPT), output=1)
    elsewhere = ("decode-0", OtherStages("prefill-0"))

    found = play(trace, fleet_of("prefill=1,decode=1"), elsewhere, elsewhere)[1]

    assert found.ttft_s == STEP_S + 4 * TOKEN_S + 4 / TOKENS_PER_S + LATENCY_S + DECODED_S
    assert found.gpu_tokens == 12


@pytest.mark.parametrize(("encoders", "n_rounds"), [(1, 3), (2, 2)])
def test_media_are_encoded_before_the_prompt_is_computed(encoders: int, n_rounds: int) -> None:
    trace = with_media(make_trace((0.0, 16, PROMPT), output=1), 3)
    servers = tuple(f"encode-{number}" for number in range(encoders))

    found = play(
        trace,
        fleet_of(f"prefill=1,decode=1,encode={encoders}"),
        ("decode-0", OtherStages("prefill-0", servers)),
    )[0]

    computed_s = STEP_S + 16 * TOKEN_S + 16 / TOKENS_PER_S + LATENCY_S + DECODED_S
    assert found.ttft_s == n_rounds * ENCODE_S + computed_s


@pytest.mark.parametrize("prefill", [None, "prefill-0"])
def test_server_that_computes_the_prompt_encodes_its_media_without_encode_servers(
    prefill: str | None,
) -> None:
    trace = make_trace((0.0, 16, PROMPT), output=1)
    placement = ("decode-0", OtherStages(prefill))
    fleet = fleet_of("prefill=1,decode=1")

    with_two, without = play(with_media(trace, 2), fleet, placement)[0], play(trace, fleet, placement)[0]

    assert with_two.ttft_s == without.ttft_s + 2 * ENCODE_S


def stages_of(policy: str, roles: str = "prefill=1,decode=2", *, n_media: int = 0) -> Replayed:
    fleet, trace = fleet_of(roles, times=ServiceTimes()), with_media(random_trace(3), n_media)
    router = make_router(Policy(policy), fleet, granularity=1, rng=Random(1))
    return Replay(trace, fleet, router, timing=Timing(), rng=Random(1)).run()


@pytest.mark.parametrize("policy", STAGE_POLICIES)
def test_every_policy_answers_every_request_once_and_the_same_way_again(policy: str) -> None:
    one, again = stages_of(policy), stages_of(policy)

    assert sorted(each.number for each in one.served) == list(range(60))
    assert (one.served, one.counters, one.refused) == (again.served, again.counters, 0)
    assert {each.server for each in one.served} == {"decode-0", "decode-1"}


def test_always_and_never_are_what_they_say() -> None:
    assert {each.prefill for each in stages_of("always").served} == {"prefill-0"}
    assert {each.prefill for each in stages_of("never").served} == {None}


def test_encode_servers_take_requests_with_media() -> None:
    with_encoder, without = (
        stages_of("always", f"{extra}prefill=1,decode=2", n_media=1) for extra in ("encode=1,", "")
    )

    assert len(with_encoder.served) == 60
    assert max(each.ttft_s for each in with_encoder.served) != max(each.ttft_s for each in without.served)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prefill=2", "no server decodes"),
        ("decode", "ROLE=NUMBER"),
        ("chef=1,decode=1", "'chef=1'"),
        ("", "''"),
    ],
)
def test_impossible_roles_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        parse_roles(text)


def test_policies_are_for_servers_with_roles_or_for_others() -> None:
    staged, plain = fleet_of("prefill=1,decode=1"), FleetSpec(servers=2)

    with pytest.raises(ReplayError, match="not for servers with roles"):
        make_router(Policy(next(iter(POLICIES))), staged, granularity=1, rng=Random(1))
    with pytest.raises(ReplayError, match="not for servers without roles"):
        make_router(Policy("always"), plain, granularity=1, rng=Random(1))
    with pytest.raises(ReplayError, match="2 roles for 3"):
        replace(staged, servers=3)
