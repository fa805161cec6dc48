from __future__ import annotations

import re
from collections import Counter

import pytest

from kvatlas.sim.errors import TraceError
from kvatlas.sim.traces.named import named_traces

SHARED = (
    "shared-prefix:num_groups=3,num_prompts_per_group=4,system_prompt_len=40,question_len=10,output_len=7,"
    "block_size=8,concurrency=5"
)


def test_shared_prefix_workload_has_the_groups_asked_for() -> None:
    (trace,) = named_traces(SHARED)

    assert (len(trace.requests), trace.concurrency, trace.block_size) == (12, 5, 8)
    assert {(request.n_prompt, request.n_output) for request in trace.requests} == {(50, 7)}
    assert sorted(Counter(request.ids[:5] for request in trace.requests).values()) == [4, 4, 4]
    assert len({request.ids[5:] for request in trace.requests}) == 12
    shared = {key for request in trace.requests for key in request.ids[:5]}
    assert not shared & {key for request in trace.requests for key in request.ids[5:]}


def test_system_prompt_that_ends_inside_a_block_is_shared_up_to_that_block() -> None:
    (trace,) = named_traces(SHARED.replace("system_prompt_len=40", "system_prompt_len=44"))

    assert len(trace.requests[0].ids) == 7
    assert sorted(Counter(request.ids[:5] for request in trace.requests).values()) == [4, 4, 4]
    assert len({request.ids[5] for request in trace.requests}) == 12


def test_rate_spreads_arrivals() -> None:
    (trace,) = named_traces(SHARED.replace("concurrency=5", "rate=2"))

    times = [request.at_s for request in trace.requests]
    assert times == sorted(times)
    assert 1.0 < times[-1] < 20.0


def test_agent_repeats_all_that_was_said_before() -> None:
    (trace,) = named_traces(
        "agents:agents=3,turns=4,tool_sets=2,system_len=128,turn_len=50,output_len=30,block_size=16"
    )

    assert len(trace.requests) == 12
    for number, request in enumerate(trace.requests):
        before = request.after
        assert (before is None) == (number % 4 == 0)
        if before is not None:
            said = trace.requests[before]
            assert request.n_prompt > said.n_tokens
            assert request.ids[: said.n_tokens // 16] == said.ids[: said.n_tokens // 16]
    first = [trace.requests[agent * 4].ids[:8] for agent in range(3)]
    assert first[0] == first[2] != first[1]


def test_each_seed_is_another_workload_and_the_same_again() -> None:
    one, two = named_traces("agents:agents=2,turns=2", n_seeds=2)

    assert one.requests != two.requests
    assert named_traces("agents:agents=2,turns=2")[0].requests == one.requests


def test_limit_cuts_a_workload() -> None:
    assert len(named_traces(SHARED, limit=5)[0].requests) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("agents:agent=2", "unknown field `agent`; the settings are agents, turns", id="unknown"),
        pytest.param("agents:agents=0", "Expected `int` >= 1 - at `$.agents`", id="out_of_range"),
        pytest.param("agents:agents", "Expected `int`, got `str` - at `$.agents`", id="no_value"),
        pytest.param(
            "agents:agents=1000000000",
            "would have 12000000000 requests for 1 seed(s), want at most 1000000, whatever --limit is",
            id="endless_agents",
        ),
        pytest.param("agents:agents=1,turn_len=1000000000000", "would have 1218750001", id="endless_turns"),
        pytest.param(
            SHARED.replace("question_len=", "question_len=9000000000"),
            " block ids for 1 seed(s), want at most 50000000",
            id="endless_questions",
        ),
        pytest.param(
            SHARED.replace("output_len=", "output_len=9000000000"),
            "with its output, want at most 10000000",
            id="endless_output",
        ),
        pytest.param("agents:agents=2,starts_per_s=1e-20", "request 0 comes after", id="endless_waiting"),
        pytest.param(
            "agents:agents=2,block_size=100000000", "found 100000000 tokens per block id", id="huge_block"
        ),
        pytest.param("shared-prefix:", "missing required field `num_groups`", id="missing"),
    ],
)
def test_wrong_setting_is_named(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)):
        named_traces(text)
