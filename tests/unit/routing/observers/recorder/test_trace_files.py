from __future__ import annotations

import resource
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvatlas.routing.observers.recorder.trace_files import TraceFiles
from kvatlas.routing.observers.recorder.trace_line import MooncakeLine
from kvatlas.sim.traces.mooncake import read_trace

STARTED = 1_700_000_000.0
RUN = "requests-20231114T221320Z"


def make_files(folder: Path, *, max_bytes: int = 4000, max_files: int = 4) -> TraceFiles:
    return TraceFiles(folder, max_bytes=max_bytes, max_files=max_files, block_size=64, started=STARTED)


def line(number: int, n_ids: int = 10) -> MooncakeLine:
    """About 200 bytes with 10 ids."""
    return MooncakeLine(number, 64 * n_ids, 1, tuple(range(2**52, 2**52 + n_ids)))


@contextmanager
def no_file_larger_than(n_bytes: int) -> Generator[None]:
    """As on a full disk: a write beyond fails, after as much of it as fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_stay_within_the_bound_and_each_is_a_trace_of_its_own(tmp_path: Path) -> None:
    files = make_files(tmp_path / "a" / "b")
    kept: list[int] = []
    for number in range(60):
        assert files.write(line(number))
        sizes = [path.stat().st_size for path in files.folder.iterdir()]
        assert sum(sizes) == files.size_bytes <= 4000
        assert len(sizes) <= 4
    files.close()

    for path in sorted(files.folder.iterdir()):
        trace = read_trace(path)
        assert trace.block_size == 64
        kept += [round(request.at_s * 1000) for request in trace.requests]
    assert kept == list(range(60 - len(kept), 60))
    assert len(kept) > 8


def test_files_of_earlier_runs_are_deleted_first_although_the_clock_was_set_back(tmp_path: Path) -> None:
    earlier = [f"requests-20990101T000000Z-00000{number}.jsonl" for number in (1, 2)]
    for name in earlier:
        (tmp_path / name).write_bytes(b"{}\n")
    files = make_files(tmp_path)
    for number in range(12):
        files.write(line(number))
    files.close()

    assert names(tmp_path) == [*(f"{RUN}-00000{number}.jsonl" for number in (1, 2, 3)), earlier[1]]


@pytest.mark.parametrize("deleted", ["file", "folder"])
def test_another_file_is_begun_when_somebody_deletes_the_one_being_written(
    deleted: str, tmp_path: Path
) -> None:
    files = make_files(tmp_path / "a")
    files.write(line(0))
    if deleted == "file":
        (files.folder / f"{RUN}-000001.jsonl").unlink()
    else:
        shutil.rmtree(files.folder)
    files.write(line(1))
    files.write(line(2))
    files.close()

    assert names(files.folder) == [f"{RUN}-000002.jsonl"]
    assert files.current is not None
    assert [round(request.at_s * 1000) for request in read_trace(files.current).requests] == [1, 2]
    assert files.size_bytes == files.current.stat().st_size


def test_traces_of_earlier_runs_count_and_go_first_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "requests-20200101T000000Z-000001.jsonl").write_bytes(b"x" * 900)
    (tmp_path / "requests-20200101T000000Z-000002.jsonl").write_bytes(b"x" * 900)
    (tmp_path / "notes.txt").write_bytes(b"x" * 9000)
    files = make_files(tmp_path)
    for number in range(12):
        files.write(line(number))

    assert names(tmp_path) == [
        "notes.txt",
        "requests-20200101T000000Z-000002.jsonl",
        *(f"{RUN}-00000{number}.jsonl" for number in (1, 2, 3)),
    ]
    files.close()


def test_run_that_begins_in_the_same_second_takes_the_next_number(tmp_path: Path) -> None:
    first, second = make_files(tmp_path), make_files(tmp_path)
    first.write(line(1))
    second.write(line(2))

    assert names(tmp_path) == [f"{RUN}-000001.jsonl", f"{RUN}-000002.jsonl"]
    first.close()
    second.close()


def test_request_longer_than_a_file_is_left_out(tmp_path: Path) -> None:
    files = make_files(tmp_path)

    assert not files.write(line(1, n_ids=100))
    assert files.write(line(2))
    assert files.current == tmp_path / f"{RUN}-000001.jsonl"
    files.close()


def test_write_that_fails_leaves_no_part_of_a_line_and_the_next_begins_a_file(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    files.write(line(1))
    with no_file_larger_than(300), pytest.raises(OSError, match="File too large"):
        files.write(line(2))
    files.write(line(3))
    files.close()

    traces = [read_trace(path).requests for path in sorted(tmp_path.iterdir())]
    assert [[request.at_s for request in requests] for requests in traces] == [[0.001], [0.003]]


def test_disk_that_stays_full_leaves_no_empty_files(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    files.write(line(1))
    for _ in range(9):
        with no_file_larger_than(100), pytest.raises(OSError, match="File too large"):
            files.write(line(2))

    assert names(tmp_path) == [f"{RUN}-000001.jsonl"]
    assert len(read_trace(tmp_path / f"{RUN}-000001.jsonl").requests) == 1


def test_published_size_of_ids_is_not_written_down(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path, max_bytes=4000, max_files=2, block_size=512, started=STARTED)
    files.write(MooncakeLine(0, 600, None, (1, 2)))
    files.close()

    text = (tmp_path / f"{RUN}-000001.jsonl").read_text()
    assert text == '{"timestamp":0,"input_length":600,"output_length":null,"hash_ids":[1,2]}\n'
