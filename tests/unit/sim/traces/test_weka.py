"""Recorded agents keep their prefixes, their order and their pauses, whatever the file says beside that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.sim.errors import TraceError
from kvatlas.sim.traces.named import named_traces
from kvatlas.sim.traces.trace import Trace
from kvatlas.sim.traces.weka import WekaSpec, weka_trace


def call(t: float, n_prompt: int, ids: list[int], *, n_output: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "s",
        "model": "large",
        "in": n_prompt,
        "out": n_output,
        "hash_ids": ids,
        "stop": "tool_use",
        **more,
    }


SESSION: dict[str, Any] = {
    "id": "one",
    "models": ["large", "small"],
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 60,
    "requests": [
        call(0.0, 130, [1, 2, 3], api_time=2.0, ttft=0.5),
        {
            "t": 3.0,
            "type": "subagent",
            "agent_id": "agent_001",
            "subagent_type": "Explore",
            "status": "completed",
            "models": ["large"],
            "requests": [
                call(1.0, 64, [9], api_time=1.0),
                call(4.0, 128, [9, 10], api_time=2.0, think_time=2.0),
            ],
        },
        {"t": 3.5, "type": "subagent", "agent_id": "lost", "status": "async_launched", "requests": []},
        call(10.0, 200, [1, 2, 4], api_time=1.0),
        call(9_000.0, 70, [1, 5], model="small", n_output=0),
    ],
}


def read(folder: Path, *sessions: dict[str, Any], **spec: Any) -> Trace:
    for number, session in enumerate(sessions):
        (folder / f"{number}.json").write_text(json.dumps(session))
    return weka_trace(WekaSpec(path=str(folder), **spec))


def test_requests_wait_for_what_ended_last_before_them_in_the_recording(tmp_path: Path) -> None:
    trace = read(tmp_path, SESSION)

    assert [each.after for each in trace.requests] == [None, 0, 1, 2, 3]
    assert [each.at_s for each in trace.requests] == [0.0, 2.0, 2.0, 1.0, 60.0]
    assert [each.n_prompt for each in trace.requests] == [130, 64, 128, 200, 70]
    assert [each.n_output for each in trace.requests] == [5, 5, 5, 5, 1]
    assert {each.session for each in trace.requests} == {"one"}


def test_blocks_are_shared_within_a_conversation_and_a_model(tmp_path: Path) -> None:
    trace = read(tmp_path, SESSION, SESSION | {"id": "two"})

    first, helper, helper_next, then, small = (each.ids for each in trace.requests[:5])
    assert (len(first), len(then), len(small)) == (3, 4, 2)
    assert helper == helper_next[:1]
    assert then[:2] == first[:2]
    assert then[2] != first[2]
    assert first[0] != small[0]
    ids = [
        {block for request in trace.requests if request.session == each for block in request.ids}
        for each in ("one", "two")
    ]
    assert not ids[0] & ids[1]


def test_conversations_follow_each_other_in_so_many_lanes(tmp_path: Path) -> None:
    short = {"id": "a", "block_size": 64, "requests": [call(5.0, 64, [1])]}

    trace = read(tmp_path, short, short, short, sessions=2)

    assert [each.after for each in trace.requests] == [None, None, 0]


def test_file_with_a_conversation_per_line_is_named_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "agents.jsonl"
    file.write_text(json.dumps(SESSION) + "\n\n" + json.dumps(SESSION) + "\n")

    one, other = named_traces(f"weka:path={file},max_pause_s=5", n_seeds=2)

    assert one == other
    assert (one.name, one.block_size, len(one.requests)) == ("agents", 64, 10)
    assert max(each.at_s for each in one.requests) == 5.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "0.json: Input data was truncated", id="no_json"),
        pytest.param('{"id": "a", "block_size": 0, "requests": []}', "block_size", id="no_blocks"),
        pytest.param('{"id": "a", "block_size": 64, "requests": []}', "contains no request", id="empty"),
    ],
)
def test_file_that_is_no_conversation_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "0.json").write_text(content)

    with pytest.raises(TraceError, match=message):
        weka_trace(WekaSpec(path=str(tmp_path)))


def test_conversations_with_blocks_of_different_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"1\.json: found block_size 16, 64 in files before it"):
        read(tmp_path, SESSION, SESSION | {"block_size": 16})


def test_missing_path_is_an_error() -> None:
    with pytest.raises(TraceError, match="No such file"):
        weka_trace(WekaSpec(path="nothing.json"))
