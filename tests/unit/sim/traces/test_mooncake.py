from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvatlas.sim.errors import TraceError
from kvatlas.sim.traces.agents import AgentsSpec, agents_trace
from kvatlas.sim.traces.mooncake import read_trace, write_trace
from kvatlas.sim.traces.named import named_traces
from kvatlas.sim.traces.trace import Assumed, TraceRequest

GOOD = '{"timestamp": 3000, "input_length": 600, "output_length": 52, "hash_ids": [0, 7]}\n'


def test_published_line_is_read(tmp_path: Path) -> None:
    file = tmp_path / "conversation.jsonl"
    file.write_text(GOOD)

    trace = read_trace(file)

    assert (trace.name, trace.block_size, trace.prompt_tokens) == ("conversation", 512, 600)
    assert trace.requests == [TraceRequest(3.0, 600, 52, (0, 7), session="7")]


def test_requests_are_sorted_by_time_and_cut_at_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("\n" + GOOD + GOOD.replace("3000", "1000") + GOOD.replace("3000", "2000"))

    assert [request.at_s for request in read_trace(file).requests] == [1.0, 2.0, 3.0]
    assert [request.at_s for request in read_trace(file, limit=2).requests] == [1.0, 3.0]


@pytest.mark.parametrize("begin", [0, -5000, 1_700_000_000_000, 1_700_000_000_000_000])
def test_times_count_from_the_first_arrival(tmp_path: Path, begin: int) -> None:
    file = tmp_path / "t.jsonl"
    lines = [GOOD.replace("3000", str(begin + after)) for after in (2000, 0)]
    file.write_text("".join(lines) + GOOD.replace("3000", "4000").replace("}", ', "after": 1}'))

    assert [request.at_s for request in named_traces(str(file))[0].requests] == [2.0, 0.0, 4.0]


def test_output_of_no_tokens_is_one_token(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(GOOD.replace("52", "0"))

    assert read_trace(file).requests[0].n_output == 1


@pytest.mark.parametrize(
    ("outputs", "read", "assumed"),
    [
        pytest.param(["9", "null", "3", "5"], [9, 5, 3, 5], Assumed(1, 5), id="median_of_the_known"),
        pytest.param(["null", "null"], [256, 256], Assumed(2, 256), id="none_known"),
        pytest.param(["0", "null"], [1, 1], Assumed(1, 1), id="never_less_than_one"),
        pytest.param(["4"], [4], None, id="all_known"),
    ],
)
def test_output_is_assumed_where_it_is_not_known(
    outputs: list[str], read: list[int], assumed: Assumed | None, tmp_path: Path
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(GOOD.replace("52", output) for output in outputs))

    trace = read_trace(file)

    assert [request.n_output for request in trace.requests] == read
    assert trace.assumed == assumed


@pytest.mark.parametrize(
    ("block_size", "n_ids", "session"),
    [
        pytest.param(512, 3, "1", id="second_block"),
        pytest.param(1024, 2, "1", id="second_of_larger_blocks"),
        pytest.param(64, 12, "8", id="behind_512_tokens"),
        pytest.param(64, 5, "4", id="last_of_a_short_prompt"),
        pytest.param(512, 1, "0", id="only_block"),
    ],
)
def test_conversation_is_told_by_what_is_behind_512_tokens(
    block_size: int, n_ids: int, session: str, tmp_path: Path
) -> None:
    file = tmp_path / "t.jsonl"
    ids = ", ".join(map(str, range(n_ids)))
    file.write_text(
        f'{{"timestamp": 0, "input_length": {n_ids * block_size}, "output_length": 1, "hash_ids": [{ids}], '
        f'"block_size": {block_size}}}\n'
    )

    assert read_trace(file).requests[0].session == session


def test_written_trace_reads_the_same(tmp_path: Path) -> None:
    made = agents_trace(AgentsSpec(agents=3, turns=3), seed=5)
    file = tmp_path / f"{made.name}.jsonl"

    write_trace(made, file)

    read = read_trace(file)
    assert (read.name, read.block_size, len(read.requests)) == (made.name, made.block_size, 9)
    for ours, theirs in zip(read.requests, made.requests, strict=True):
        assert ours.at_s == pytest.approx(theirs.at_s, abs=1e-6)
        assert (ours.ids, ours.session, ours.after) == (theirs.ids, theirs.session, theirs.after)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("nonsense", "2: JSON is malformed", id="no_json"),
        pytest.param('{"timestamp": 1}', "2: Object missing required field `input_length`", id="missing"),
        pytest.param(GOOD.replace("600", '"x"'), "Expected `int`, got `str`", id="wrong_type"),
        pytest.param(GOOD.replace("600", "0"), "2: found input_length 0", id="no_prompt"),
        pytest.param(GOOD.replace("52", "-1"), "2: found output_length -1", id="negative_output"),
        pytest.param(
            GOOD.replace("600", "1025"), "found 2 hash_ids, want 3 for 1025 tokens", id="too_few_ids"
        ),
        pytest.param(
            GOOD.replace("52", "1000000000000"),
            "2: found input_length 600 and output_length 1000000000000",
            id="endless",
        ),
        pytest.param(
            GOOD.replace("3000", "1e300"), "2: found timestamp 1e+300, want milliseconds", id="no_time"
        ),
        pytest.param(GOOD.replace("3000", "-1.7e18"), "2: found timestamp -1.7e+18", id="long_ago"),
        pytest.param(
            GOOD.replace("3000", "1.7e12"),
            "2: comes 19676 days after the first request, want at most 366",
            id="late",
        ),
        pytest.param(
            GOOD.replace("3000", "1e12").replace("}", ', "after": 0}'),
            "2: comes 11574 days after the request it waits for",
            id="long_pause",
        ),
        pytest.param(GOOD.replace("7]", "-7]"), "hash_id outside", id="negative_id"),
        pytest.param(GOOD.replace("}", ', "after": 1}'), "found after 1", id="waits_for_itself"),
    ],
)
def test_bad_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(GOOD + line)

    with pytest.raises(TraceError, match=re.escape(message)):
        read_trace(file)


def test_too_large_a_block_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(GOOD.replace("}", ', "block_size": 1000000000000}'))

    with pytest.raises(TraceError, match="in blocks of 1000000000000 tokens, want at most 10000000"):
        read_trace(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [pytest.param("", "contains no request", id="empty"), pytest.param(None, "No such file", id="absent")],
)
def test_file_without_requests_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "t.jsonl"
    if text is not None:
        file.write_text(text)

    with pytest.raises(TraceError, match=message):
        read_trace(file)
