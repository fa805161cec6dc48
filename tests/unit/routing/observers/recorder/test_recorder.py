from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.observers import RecorderConfig
from kvatlas.indexer.prefix import Prefix
from kvatlas.routing.observers.recorder import recorder as module
from kvatlas.routing.observers.recorder.recorder import Fate, Recorder
from kvatlas.routing.outcome import Completion, Outcome, Response, Usage, UsageGap
from kvatlas.routing.router import Route
from kvatlas.sim.traces.mooncake import read_trace
from kvatlas.sim.traces.trace import Trace
from support.candidates import endpoint
from support.rating import routed_to
from support.waiting import until

DECISION = routed_to(endpoint("a"))


def make_recorder(folder: Path, *, block_size: int = 64, max_files: int = 2) -> Recorder:
    config = RecorderConfig(folder=str(folder), block_size=block_size, max_mebibytes=1, max_files=max_files)
    return Recorder(config)


def prompt(n_tokens: int, first: int = 0) -> Prefix:
    return Prefix(array("I", range(first, first + n_tokens)))


def only_trace(folder: Path) -> Trace:
    """Read the trace of a folder with one file."""
    (file,) = folder.iterdir()
    return read_trace(file)


def fate_counted(recorder: Recorder, fate: Fate, count: int) -> Callable[[], bool]:
    """Whether so many requests have had that fate."""
    return lambda: recorder.fates[fate] == count


def request(
    recorder: Recorder, prefix: Prefix, at: float, usage: Usage | UsageGap | None = None, n_choices: int = 1
) -> Completion:
    """Return a routed request whose response has ended."""
    decision = msgspec.structs.replace(DECISION, at=at, n_choices=n_choices)
    arrival = recorder.routed(decision, prefix)
    route = Route(("a:80",), decision, arrival=arrival)
    return Completion("", route, Outcome.COMPLETED, response=Response(usage=usage))


@pytest.mark.parametrize(
    ("decision", "prefix", "fate"),
    [
        pytest.param({}, None, Fate.NO_PREFIX, id="no_prefix"),
        pytest.param({"no_prefix_reason": "no_tokenizer"}, prompt(64), Fate.NO_PREFIX, id="bytes"),
        pytest.param({}, prompt(0), Fate.NO_PREFIX, id="empty"),
        pytest.param({"cut_reason": "media"}, prompt(64), Fate.CUT, id="cut"),
        pytest.param({"n_prompts": 2}, prompt(64), Fate.SEVERAL_PROMPTS, id="several"),
    ],
)
async def test_request_is_counted_when_it_cannot_be_recorded(
    decision: dict[str, object], prefix: Prefix | None, fate: Fate, tmp_path: Path
) -> None:
    recorder = make_recorder(tmp_path)

    assert recorder.routed(msgspec.structs.replace(DECISION, **decision), prefix) is None
    assert {fate for fate, count in recorder.fates.items() if count} == {fate}


async def test_trace_has_times_lengths_and_shared_blocks_when_read_again(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, block_size=16)
    now = recorder.began_at
    ended = [
        request(recorder, prompt(40), now + 2.0, Usage(output_tokens=7)),
        request(recorder, prompt(36), now + 1.5, UsageGap.ABSENT),
        request(recorder, prompt(40), now + 3.0, Usage(output_tokens=9)),
        request(recorder, prompt(40, first=1), now + 4.0),
    ]
    recorder.start()
    for completion in ended:
        recorder.ended(completion)
    await recorder.stop()

    trace = only_trace(tmp_path)
    assert trace.block_size == 16
    assert [(each.at_s, each.n_prompt, each.n_output) for each in trace.requests] == [
        (1.5, 36, 7), (2.0, 40, 7), (3.0, 40, 9), (4.0, 40, 7)
    ]  # fmt: skip
    short, first, again, other = (each.ids for each in trace.requests)
    assert first == again
    assert short[:2] == first[:2]
    assert len({*short, *first, *other}) == 3 + 1 + 3
    assert (recorder.fates[Fate.RECORDED], recorder.n_without_output, recorder.n_waiting) == (4, 2, 0)


async def test_length_is_that_of_one_choice_when_the_client_wants_several(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    completion = request(recorder, prompt(64), 0.0, Usage(output_tokens=44), n_choices=4)
    recorder.start()
    recorder.ended(completion)
    await recorder.stop()

    assert [each.n_output for each in only_trace(tmp_path).requests] == [11]


async def test_recorders_share_no_id(tmp_path: Path) -> None:
    ids: list[set[int]] = []
    for name in ("a", "b"):
        recorder = make_recorder(tmp_path / name)
        recorder.start()
        recorder.ended(request(recorder, prompt(1000), 0.0))
        await recorder.stop()
        ids.append(set(only_trace(tmp_path / name).requests[0].ids))

    assert not ids[0] & ids[1]


async def test_requests_are_written_while_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.01)
    recorder = make_recorder(tmp_path)
    recorder.start()
    for number in range(3):
        recorder.ended(request(recorder, prompt(100), 0.0))
        await until(fate_counted(recorder, Fate.RECORDED, number + 1), what="the request in the file")
    await recorder.stop()


async def test_request_is_given_up_when_too_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_KEYS", 5)
    recorder = make_recorder(tmp_path, block_size=16)
    for _ in range(3):
        recorder.ended(request(recorder, prompt(32), 0.0))
    recorder.start()
    await recorder.stop()

    assert (recorder.fates[Fate.RECORDED], recorder.fates[Fate.OVERLOAD]) == (2, 1)
    recorder.ended(request(recorder, prompt(32), 0.0))
    assert recorder.n_waiting == 1, "what is written waits no longer"


async def test_failure_is_counted_told_once_and_forgotten_when_writing_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.01)
    folder = tmp_path / "traces"
    folder.touch()
    recorder = make_recorder(folder)
    recorder.start()
    for number in range(2):
        recorder.ended(request(recorder, prompt(100), 0.0))
        await until(fate_counted(recorder, Fate.NOT_WRITTEN, number + 1), what="the loss")
    failure = recorder.failure
    folder.unlink()
    recorder.ended(request(recorder, prompt(100), 0.0))
    await until(fate_counted(recorder, Fate.RECORDED, 1), what="the request in the file")
    await recorder.stop()

    assert "File exists" in failure
    assert recorder.failure == ""
    assert sum("cannot be written" in text for text in caplog.messages) == 1


async def test_request_that_fits_no_file_is_counted(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path, max_files=1000, block_size=1)
    recorder.start()
    recorder.ended(request(recorder, prompt(1000), 0.0))
    await recorder.stop()

    assert recorder.fates[Fate.TOO_LONG] == 1
    assert recorder.n_without_output == 0


async def test_refused_request_and_one_without_record_are_passed_over(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    recorder.ended(Completion("", None, Outcome.REFUSED))
    recorder.ended(Completion("", Route(("a:80",), DECISION), Outcome.COMPLETED))

    assert recorder.n_waiting == 0
    await recorder.stop()
