"""`joint-cost-handler` beside servers whose load is unknown, since they are down."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.candidates import endpoint, held, load
from support.joint import joint, options_of, pair_of
from support.rating import decide

FAST = {"gigabitsPerSecond": 1000.0, "kvBytesPerToken": 125_000.0, "latencyMs": 1.0}
PROFILE = joint(
    prefillTokensPerSecond=1000.0, overheadMs=10.0, fit=False, decodeWeight=0.0, transfer=FAST
).profile
"""Decides at costs at which a token of a prompt takes a millisecond."""

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)


def server(name: str, role: str, *, ahead: int = 0, of: Any = None, cached: int = 0) -> Candidate:
    in_flight = (1, ahead) if ahead else (0, 0)
    return endpoint(name, of=of, prefix=held(gpu=cached), in_flight=in_flight, labels={ROLE_LABEL: role})


def decoder(name: str = "d", *, ahead: int) -> Candidate:
    return server(name, "decode", ahead=ahead, of=load())


def prefiller(name: str = "p", *, ahead: int = 0) -> Candidate:
    return server(name, "prefill", ahead=ahead, of=load())


def test_decode_server_of_unknown_load_comes_after_others() -> None:
    down = server("d0", "decode", cached=9)
    assert pair_of(decide(PROFILE, REQUEST, [down, decoder("d1", ahead=500), prefiller()])) == ("p", "d1")


@pytest.mark.parametrize(
    ("fleet", "pair"),
    [
        pytest.param((decoder(ahead=500),), (None, "d"), id="single"),
        pytest.param((decoder(ahead=500), prefiller(ahead=900)), (None, "d"), id="other_is_busy"),
        pytest.param((decoder(ahead=900), prefiller(ahead=30)), ("p", "d"), id="other_has_time"),
        pytest.param((server("d", "decode", ahead=500),), ("down", "d"), id="all_unknown"),
    ],
)
def test_prefill_server_of_unknown_load_computes_nothing_while_another_load_is_known(
    fleet: tuple[Candidate, ...], pair: tuple[str | None, str]
) -> None:
    decision = decide(PROFILE, REQUEST, [*fleet, server("down", "prefill", cached=9)])
    assert pair_of(decision) == pair
    assert ("down" in {each.prefill for each in options_of(decision)}) == (pair[0] == "down")
