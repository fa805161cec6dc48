"""The docs show the committed results of the benchmarks, and nobody writes a figure by hand."""

from __future__ import annotations

import argparse

import pytest

from bench.catalog import MODULES, load
from bench.common import docs, results
from bench.common.benchmark import Benchmark
from bench.runner import own_options

PAGES = [pytest.param(page.read_text(), id=page.name) for page in docs.pages()]
WITH_TABLES = [name for name in MODULES if load(name).has_tables]


def defaults(benchmark: Benchmark) -> results.Options:
    parser = argparse.ArgumentParser()
    benchmark.add_options(parser)
    return own_options(parser.parse_args([]))


@pytest.mark.parametrize("page", PAGES)
def test_regions_are_written_from_the_committed_results(page: str) -> None:
    assert docs.regions(page)
    assert docs.rendered(page, WITH_TABLES) == page


def test_every_table_of_every_benchmark_is_in_the_docs() -> None:
    shown = {name for page in docs.pages() for name in docs.regions(page.read_text())}
    assert {name.partition("/")[0] for name in shown} == set(WITH_TABLES)
    for benchmark in WITH_TABLES:
        tables = {f"{benchmark}/{table.name}" for table in results.read(benchmark).tables}
        assert benchmark in shown or tables <= shown, benchmark


def test_results_are_those_of_benchmarks_with_their_default_options() -> None:
    assert {file.stem for file in results.FOLDER.iterdir()} == set(WITH_TABLES)
    for name in WITH_TABLES:
        benchmark, result = load(name), results.read(name)
        assert benchmark.name == result.benchmark == name
        assert result.options == defaults(benchmark), name


@pytest.mark.parametrize("name", MODULES)
def test_page_names_every_benchmark_and_its_summary_is_one_line(name: str) -> None:
    page = docs.FOLDER / "benchmarks.md"
    assert f"`{name}`" in page.read_text() or f"bench:{name}/" in page.read_text()
    assert load(name).summary.endswith(".")
    assert len(load(name).summary) <= 110


def test_region_edited_by_hand_is_not_what_the_results_say() -> None:
    page = next(page.read_text() for page in docs.pages())
    name, region = next(iter(docs.regions(page).items()))
    mark = f"<!-- bench:{name} begin -->\n"
    assert docs.rendered(page.replace(mark + region, f"{mark}my own figures\n"), WITH_TABLES) == page


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<!-- bench:a begin -->\n", id="no_end"),
        pytest.param("<!-- bench:a end -->", id="no_begin"),
        pytest.param("<!-- bench:a begin -->\n<!-- bench:b end -->", id="another_end"),
        pytest.param("<!-- bench:a begin -->\n<!-- bench:a end -->\n" * 2, id="twice"),
    ],
)
def test_regions_refuse_a_mark_without_its_counterpart(text: str) -> None:
    with pytest.raises(ValueError, match="a mark without its counterpart, or a region twice"):
        docs.regions(text)
