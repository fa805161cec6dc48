"""The benchmark still runs, finds differences, and says what it measured. Its figures are not tested."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from rich.progress import Progress

from bench.common.results import Result
from bench.common.tables import markdown
from bench.index.columns import Answer, Column, compare
from bench.index.filled import Filled
from bench.index.fleet import BLOCK_SIZE, SEED, Shape, make_fleet
from bench.index.indexes import OurIndex
from bench.index.report import section_table, verdict_table
from bench.index.results import Figure, Row, Samples, Section, Target
from bench.index.sizes import SIZES
from kvatlas.indexer.factory import index_core
from support.tree import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"
OURS = (Column.REFERENCE, Column.NATIVE)
TINY = SIZES["tiny"]
ROWS = {
    "match": 6,
    "atlas": 6,
    "contention": 4,
    "ingest": len(TINY.ingest),
    "stores": 4,
    "memory": 2,
    "removal": 3,
    "scale": 14,
    "keys": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    """Run the smallest size, and return its result and output."""
    file = tmp_path_factory.mktemp("bench") / "index.json"
    command = [sys.executable, "-m", "bench", "--size", "tiny", "--without-dynamo", "--json", str(file)]
    before = DOCUMENT.read_text()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr
    assert DOCUMENT.read_text() == before
    return msgspec.json.decode(file.read_bytes(), type=Result), ended.stdout


@pytest.mark.slow
def test_run_measures_every_section_for_both_of_our_columns(run: tuple[Result, str]) -> None:
    result, _ = run
    sections = {table.name: table for table in result.tables if table.name in ROWS}
    assert {name: len(table.rows) for name, table in sections.items()} == ROWS
    for table in sections.values():
        assert table.headings == ("", "unit", *OURS, "target of native", "")
        for label, unit, _, native, *_ in table.rows:
            assert label
            assert unit
            assert isinstance(native, float | tuple), label


@pytest.mark.slow
def test_run_counts_the_targets_and_the_fleet(run: tuple[Result, str]) -> None:
    result, _ = run
    ((n_targets, n_reached),) = result.table("targets").rows
    assert isinstance(n_targets, int)
    assert isinstance(n_reached, int)
    assert 0 <= n_reached <= n_targets
    assert ("endpoints", TINY.fleet.n_endpoints) in result.table("fleet").rows
    assert result.options == {"size": "tiny", "without_dynamo": True}


@pytest.mark.slow
def test_run_prints_every_row_and_how_to_add_dynamo_and_writes_no_docs(run: tuple[Result, str]) -> None:
    result, output = run
    for table in result.tables:
        assert table.title in output
        assert all(str(row[0]) in output for row in table.rows)
    assert "pip install --no-deps ai-dynamo-runtime" in output
    assert "neither bench/results nor the docs were written" in output


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({0: (1, 2)}, id="endpoint_missing"),
        pytest.param({0: (1, 2), 1: (0, 3), 2: (0, 1)}, id="endpoint_too_many"),
        pytest.param({0: (1, 2), 1: (0, 4)}, id="other_blocks"),
    ],
)
def test_compare_ends_the_run_when_answers_differ(other: Answer) -> None:
    with pytest.raises(SystemExit, match=r"a prompt: one and two differ on 1 endpoints; on endpoint [12] "):
        compare({"one": {0: (1, 2), 1: (0, 3)}, "two": other}, "a prompt")


async def test_check_ends_the_run_when_an_index_lost_a_block() -> None:
    fleet = make_fleet(TINY.fleet)
    indexes = {column: OurIndex(column, TINY.fleet.n_endpoints) for column in OURS}
    for holder, blocks in fleet.stores():
        for index in indexes.values():
            index.store(holder, blocks)
    filled = Filled(fleet, {**indexes})
    agent_prompt = fleet.endpoints[0].cpu[0]
    with Progress(disable=True) as progress:
        await filled.check("before", progress)
        indexes[Column.NATIVE].remove(1, next(agent_prompt.events()))
        with pytest.raises(SystemExit, match="after: reference index and native index differ on 1 endpoints"):
            await filled.check("after", progress)


def test_fleet_has_the_keys_of_its_tokens_and_on_cpu_what_is_on_gpu() -> None:
    fleet = make_fleet(Shape(3))
    for prompts in fleet.prompts.values():
        for prompt in prompts:
            assert prompt.keys == index_core().prefix_keys(prompt.tokens, BLOCK_SIZE, seed=SEED)
    for caches in fleet.endpoints:
        gpu, cpu = ([key for blocks in contents for key in blocks.keys] for contents in caches.tiers)
        assert set(gpu) < set(cpu)
        assert len(set(cpu)) == len(cpu)


def make_row(*, native: float = 2.0, service: float | None = None, target: Target | None = None) -> Row:
    figures = {Column.NATIVE: Figure(native, p99=1234.5)}
    if service is not None:
        figures[Column.SERVICE] = Figure(service)
    return Row("row", "us", figures, target)


@pytest.mark.parametrize(
    ("row", "times", "reached", "is_met"),
    [
        pytest.param(make_row(), None, None, True, id="no_target"),
        pytest.param(make_row(target=Target(2)), None, 2, True, id="at_most"),
        pytest.param(make_row(target=Target(1.9)), None, 2, False, id="more_than_at_most"),
        pytest.param(make_row(service=6, target=Target(3, Column.SERVICE)), 3, 3, True, id="often_enough"),
        pytest.param(make_row(service=5, target=Target(3, Column.SERVICE)), 2.5, 2.5, False, id="too_seldom"),
        pytest.param(make_row(target=Target(3, Column.SERVICE)), None, None, True, id="peer_not_measured"),
        pytest.param(make_row(native=0, service=5), None, None, True, id="no_time_at_all"),
    ],
)
def test_row_holds_the_native_figure_against_its_target(
    row: Row, times: float | None, reached: float | None, is_met: bool
) -> None:
    assert (row.times(Column.SERVICE), row.reached, row.is_met) == (times, reached, is_met)


def test_section_table_has_ratios_and_whether_targets_are_reached() -> None:
    rows = (
        make_row(service=5, target=Target(3, Column.SERVICE)),
        make_row(target=Target(2)),
        make_row(native=0.123),
    )
    section = Section("match", "Title", rows)
    lines = markdown(section_table(section, (Column.NATIVE, Column.SERVICE))).splitlines()
    assert lines[0] == (
        "| Title | unit | native | Dynamo SelectionService | Service / native | target of native |  |"
    )
    assert lines[2:] == [
        "| row | us | 2.00 (1,234) | 5.00 | 2.50x | Service / 3 | MISSED |",
        "| row | us | 2.00 (1,234) | - |  | <= 2 | reached |",
        "| row | us | 0.12 (1,234) | - |  |  |  |",
    ]
    assert verdict_table([section, section]).rows == ((4, 2),)


def test_samples_give_median_and_percentile_by_column() -> None:
    samples = Samples()
    for value in range(101):
        samples.add(Column.NATIVE, value / 10)
    assert samples.medians(per=0.5, with_p99=True) == {Column.NATIVE: Figure(10, 19.8)}
    assert samples.medians() == {Column.NATIVE: Figure(5)}
