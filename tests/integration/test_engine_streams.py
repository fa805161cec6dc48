"""Recordings of engines over real ZMQ: publisher, subscription, stream, index, and what a decision expects of the engine's cache."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.subscription import Subscription
from kvatlas.fleet.drafters import LABEL
from kvatlas.fleet.endpoint import Endpoint
from kvatlas.fleet.fleet import Fleet
from support.engine_page import DROPPING, written_figures
from support.engine_recordings import SGLANG, VLLM, Recorded
from support.fleets import make_config, make_fleet
from support.recording import Frame, Player, player, read_frames, read_lines
from support.waiting import until

TIERS = [
    {"name": "gpu", "media": ["GPU"]},
    {"name": "cpu", "media": ["CPU", "CPU_PINNED"]},
    {"name": "storage", "media": ["STORAGE"]},
]
CASES = [
    pytest.param(case, id=case.name)
    for folder in (VLLM, SGLANG)
    for case in sorted(folder.iterdir())
    if case.is_dir()
]


@pytest.mark.parametrize("case", CASES)
async def test_decisions_expect_what_engines_reuse_as_often_as_the_page_says(case: Path) -> None:
    frames, played, wrong = read_frames(case / "zmq.jsonl"), 0, list[tuple[int, int, int]]()
    publishers = sorted({frame.endpoint for frame in frames})
    requests = list(read_lines(case / "truth.jsonl", Recorded))
    async with AsyncExitStack() as stack:
        players = [await stack.enter_async_context(player()) for _ in publishers]
        fleet = await stack.enter_async_context(make_fleet(make_config(tiers=TIERS)))
        endpoint = await follow(fleet, players, drops=case.name in DROPPING)
        for request in requests:
            while played < len(frames) and frames[played].received_at <= request.t0:
                await publish(endpoint, players, publishers, frames[played])
                played += 1
            await until(lambda: is_applied(endpoint, players), what="all messages in the index")
            expected = expect(fleet, request)
            if expected != request.cached_tokens:
                wrong.append((request.i, expected, request.cached_tokens))
    assert len(requests) - len(wrong) == written_figures()[case.name], wrong


async def follow(fleet: Fleet, players: list[Player], *, drops: bool) -> Endpoint:
    ranks = tuple(RankAddresses(n, each.events, each.replay) for n, each in enumerate(players))
    labels = {LABEL: "true"} if drops else {}
    fleet.add("e", EndpointAddresses(HostPort("10.0.0.1", 8000), None, ranks), labels)
    endpoint = fleet.get("e")
    assert endpoint is not None
    await until(lambda: all(s.stream.is_connected for s in subscriptions(endpoint)), what="connections")
    return endpoint


def subscriptions(endpoint: Endpoint) -> Iterator[Subscription]:
    return (rank.subscription for rank in endpoint.ranks if rank.subscription is not None)


async def publish(endpoint: Endpoint, players: list[Player], publishers: list[str], frame: Frame) -> None:
    await players[publishers.index(frame.endpoint)].publish(frame)


def is_applied(endpoint: Endpoint, players: list[Player]) -> bool:
    """Return whether each rank has applied the last message of its publisher."""
    for subscription, each in zip(subscriptions(endpoint), players, strict=True):
        last = int.from_bytes(each.history[-1][1], "big") if each.history else None
        if subscription.stream.last_seq != last or subscription.is_applying:
            return False
    return True


def expect(fleet: Fleet, request: Recorded) -> int:
    """Send the request to the rank that served it; return the tokens that are expected to be reused there."""
    now = time.monotonic()
    prefix = fleet.atlas.prefix(array("I", request.tokens), lora=request.lora, salt=request.salt)
    (candidate,) = fleet.candidates(prefix, now=now)
    fleet.routed(candidate, prefix, now=now)
    match = candidate.prefix
    return match.rank_usable_tokens.get(request.rank_served, 0) if match is not None else 0
