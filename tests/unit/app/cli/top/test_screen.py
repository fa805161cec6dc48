"""The screen of `kvatlas top`: in any size, for any names, with the reason of each decision."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kvatlas.api.rest.frame_models import LiveDecisionOut, LiveFrame, RivalOut, TermOut
from kvatlas.api.rest.models import EndpointOut, LoadOut, PublisherOut, TierOut
from kvatlas.api.rest.replica_models import ReplicasOut
from kvatlas.app.cli.top.rates import COUNTERS, RatesOut, Sample
from kvatlas.app.cli.top.screen import screen
from support.shown_replicas import FIVE, other, replicas_answer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RATES = RatesOut(**dict.fromkeys(COUNTERS, 0.0))


def tier(**changed: Any) -> TierOut:
    told: dict[str, Any] = {
        "name": "gpu", "residencies": 812, "capacity": 1600, "configuredCapacity": "auto", "capacitySummary": "",
        "observedCapacity": None, "chunkBlocks": None, "source": "events", "dark": False, "advice": None,
    }  # fmt: skip
    return TierOut.model_validate(told | changed)


def publisher(trust: str = "live") -> PublisherOut:
    return PublisherOut(
        rank=0, events="tcp://h:1", replay=None, trust=trust, epoch=1, last_seq=1, lag_seconds=0.1, block_size=16, counters={}
    )  # fmt: skip


def endpoint(name: str = "vllm-0", **changed: Any) -> EndpointOut:
    load = LoadOut(
        waiting=1, running=2, kv_utilization=0.97, in_flight_requests=3, in_flight_tokens=4, age_seconds=0.1
    )
    told = EndpointOut(
        name=name, address="h:1", tenant="default", instance=name, labels={}, load=load, scrape=None,
        tiers=[tier()], publishers=[publisher()],
    )  # fmt: skip
    return told.model_copy(update=changed)


def decision(**changed: Any) -> LiveDecisionOut:
    told = LiveDecisionOut(
        request_id="request-1", time=NOON, model="m", tokens=1234, usable_tokens=640, picked=["vllm-0"], total=2.5,
        tie=False, config_generation=1, dropped=0, no_prefix_reason=None, verdict="good",
        terms=[TermOut(name="queue-scorer", product=1.0), TermOut(name="gpu-prefix-cache-scorer", product=0.75)],
        rival=RivalOut(name="vllm-1", total=2.0, terms=[
            TermOut(name="queue-scorer", product=1.5), TermOut(name="gpu-prefix-cache-scorer", product=0.25),
        ]),
    )  # fmt: skip
    return told.model_copy(update=changed)


def frame(endpoints: list[EndpointOut], decisions: list[LiveDecisionOut], **changed: Any) -> LiveFrame:
    told = LiveFrame(
        time=NOON, ready=True, generation=3, keys=599, residencies=1500, bytes=2**21, endpoint_count=len(endpoints),
        endpoints=endpoints, decision_count=len(decisions), decisions=decisions,
    )  # fmt: skip
    return told.model_copy(update=changed)


def shown(
    looked_at: LiveFrame,
    *,
    rates: RatesOut | None = RATES,
    columns: int = 120,
    lines: int | None = None,
    replicas: ReplicasOut | None = None,
    gone: str = "",
) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    console.print(
        screen("http://h:8080", looked_at, rates, n_lines=lines, replicas=replicas, gone=gone),
        highlight=False,
    )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_screen_has_state_rates_endpoints_and_decisions() -> None:
    rates = RATES.model_copy(
        update={"requests": 4.2, "prompt_tokens": 31_200.0, "cached_tokens": 15_600.0, "refusals": 0.5}
    )

    title, speed, _, heading, row, _, _, last = shown(frame([endpoint()], [decision()]), rates=rates)

    assert title.startswith(
        "kvatlas http://h:8080  ready  1 endpoints, 599 keys, 1.5k residencies in 2 MiB, configuration 3"
    )
    assert speed == "a second: 4.2 requests, 31.2k prompt tokens (50% cached), 0 events, 0.5 refused"
    assert heading.split() == ["endpoint", "trust", "wait", "run", "fly", "kv", "gpu"]
    assert row.split()[:7] == ["vllm-0", "live", "1", "2", "3", "97%", "812/1.6k"]
    assert last.split()[1:] == [
        "request-1", "1.23k", "640", "vllm-0", "gpu-prefix-cache", "+0.50", "over", "vllm-1", "good",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("replicas", "line"),
    [
        pytest.param(replicas_answer(other("a")), "replicas: 1 other heard, at most 0.1 s ago", id="well"),
        pytest.param(
            replicas_answer(problem="the server does not reply within 2 s"),
            "replicas: no other is heard, the server does not reply within 2 s",
            id="problem",
        ),
        pytest.param(
            FIVE,
            "replicas: 2 others heard, at most 0.1 s ago, 4 messages of kvatlas-2 missing, kvatlas-3 silent for 75 s, "
            "one without a name refused, kvatlas-2 has another configuration",
            id="troubles",
        ),
    ],
)
def test_replicas_have_a_line_of_their_own(replicas: ReplicasOut, line: str) -> None:
    lines = shown(frame([endpoint()], [decision()]), replicas=replicas, columns=180, lines=9)
    assert lines[2] == line
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("told", "text"),
    [
        pytest.param(
            decision(picked=[], dropped=2, usable_tokens=None), "nobody  2 dropped by filters", id="nobody"
        ),
        pytest.param(decision(rival=None), "the only one", id="alone"),
        pytest.param(decision(tie=True), "chance, beside vllm-1", id="tie"),
        pytest.param(decision(terms=[]), "over vllm-1", id="no_scorer"),
        pytest.param(
            decision(stages={"prefill": ["p-0"], "encode": ["e-0", "e-1"]}),
            "e-0 > p-0 > vllm-0",
            id="stages",
        ),
        pytest.param(decision(picked=[], lacking="prefill"), "nobody for stage prefill", id="lacking"),
    ],
)
def test_decision_shows_the_scorers_that_won_it(told: LiveDecisionOut, text: str) -> None:
    assert text in shown(frame([], [told]))[-1]


@pytest.mark.parametrize(
    ("told", "cells"),
    [
        pytest.param(endpoint(load=None), ["live", "-", "-", "-", "-", "812/1.6k"], id="load_unknown"),
        pytest.param(endpoint(publishers=[publisher(), publisher("stale")]), ["stale", "1"], id="worst_rank"),
        pytest.param(endpoint(publishers=[]), ["no", "events"], id="no_events"),
        pytest.param(
            endpoint(tiers=[tier(capacity=None, source="inferred")]),
            ["live", "1", "2", "3", "97%", "812", "inferred"],
            id="unbounded",
        ),
        pytest.param(
            endpoint(tiers=[tier(residencies=0, source=None, dark=True)]),
            ["live", "1", "2", "3", "97%", "dark"],
            id="dark",
        ),
    ],
)
def test_endpoint_shows_its_known_state(told: EndpointOut, cells: list[str]) -> None:
    row = shown(frame([told], []))[4]

    assert row.split()[1 : 1 + len(cells)] == cells


def test_names_of_others_neither_steer_the_terminal_nor_are_read_as_markup() -> None:
    told = decision(request_id="\x1b[2J[red]r", picked=["[bold]a\x1b]0;x\x07"])

    *_, last = shown(frame([endpoint("[blink]e\n\x1b[31m")], [told]))

    assert "?[2J[red]r" in last
    assert "[bold]a?]0;x?" in last
    assert "\x1b" not in "".join(shown(frame([endpoint("[blink]e\n\x1b[31m")], [told])))


def test_screen_shows_that_the_process_is_gone() -> None:
    title = shown(frame([endpoint()], []), gone="3 s, refused")[0]

    assert title == "kvatlas http://h:8080  gone: 3 s, refused"


@given(
    n_endpoints=st.integers(0, 40),
    n_decisions=st.integers(0, 20),
    columns=st.integers(60, 200),
    lines=st.integers(6, 60),
)
@settings(max_examples=25)
def test_screen_fits_the_terminal_and_shows_the_least_trusted_first(
    n_endpoints: int, n_decisions: int, columns: int, lines: int
) -> None:
    endpoints = [endpoint(f"e{number:02}") for number in range(n_endpoints)]
    endpoints += [endpoint("zz", publishers=[publisher("stale")])]

    text = shown(frame(endpoints, [decision()] * n_decisions), columns=columns, lines=lines)

    assert len(text) <= lines
    assert max(map(len, text)) <= columns
    assert text[4].startswith("zz"), "below title, rates, an empty line and the heading"


def test_rates_are_those_between_two_samples() -> None:
    looked_at = frame([], [])
    before = Sample(looked_at, dict.fromkeys(COUNTERS, 10.0), at=100.0)
    after = Sample(looked_at, dict.fromkeys(COUNTERS, 30.0), at=104.0)
    hidden = Sample(looked_at, None, at=108.0)

    assert after.since(before) == RatesOut(**dict.fromkeys(COUNTERS, 5.0))
    assert before.since(None) is None
    assert before.since(after) is None, "the clock went back"
    assert Sample(looked_at, dict.fromkeys(COUNTERS, 1.0), at=108.0).since(after) is None, (
        "the process restarted"
    )
    assert hidden.since(after) is None
    assert after.since(hidden) is None
