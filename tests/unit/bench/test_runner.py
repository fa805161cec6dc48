"""The command `python -m bench`, run with a benchmark that measures nothing."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import pytest

from bench import runner
from bench.catalog import MODULES
from bench.common import docs, results
from bench.common.benchmark import Benchmark
from bench.common.tables import Table

PAGE = "# Page\n<!-- bench:fake begin -->\n<!-- bench:fake end -->\nprose\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=3)


def run(options: argparse.Namespace) -> list[Table]:
    return [Table(name="sizes", title="Sizes", headings=("size",), rows=((options.size,),))]


FAKE = Benchmark(name="fake", about="Summary.\n\nAnd the rest.", add_options=add_options, run=run)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a page of docs with a region, and return its path."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(runner, "_ROOT", tmp_path)
    monkeypatch.setattr(docs, "FOLDER", tmp_path / "docs")
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    file = tmp_path / "docs" / "page.md"
    file.write_text(PAGE)
    return file


def called(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    runner.main()


@pytest.mark.parametrize("argument", ["--list", "--help", "-h"])
def test_list_has_a_line_for_every_benchmark(
    argument: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called([argument], monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in MODULES)


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["all", "--quick"], ["--list", "index"], ["--render", "index"]]
)
def test_command_refuses_what_it_does_not_know(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        called(arguments, monkeypatch)
    assert ended.value.code == 2
    assert f"cannot read '{' '.join(arguments)}'" in capsys.readouterr().err


def test_run_writes_result_and_docs_when_asked(page: Path) -> None:
    runner.run_one(FAKE, ["--write"])

    result = results.read("fake")
    assert result.tables == tuple(run(argparse.Namespace(size=3)))
    assert result.options == {"size": 3}
    assert result.machine.cores > 0
    assert {"Python", "kvatlas"} <= result.versions.keys()
    assert docs.regions(page.read_text()) == {"fake": f"\n{result.about}\n\n| size |\n| --- |\n| 3 |\n\n"}
    assert page.read_text().startswith("# Page\n")
    assert page.read_text().endswith("<!-- bench:fake end -->\nprose\n")


@pytest.mark.parametrize("given", [[], ["--size", "4"], ["--size", "4", "--write"]])
def test_run_leaves_the_docs_alone_when_not_asked_or_with_other_options(given: list[str], page: Path) -> None:
    runner.run_one(FAKE, given)
    assert page.read_text() == PAGE
    assert not results.file_of("fake").exists()


def test_run_leaves_the_docs_alone_when_it_could_not_keep_to_the_default_options(page: Path) -> None:
    def run_without(options: argparse.Namespace) -> list[Table]:
        options.size = 0
        return run(options)

    runner.run_one(dataclasses.replace(FAKE, run=run_without), ["--write"])
    assert page.read_text() == PAGE
    assert not results.file_of("fake").exists()


def test_run_writes_its_result_where_json_says(page: Path) -> None:
    file = page.with_name("figures.json")
    runner.run_one(FAKE, ["--size", "4", "--json", str(file)])
    assert '"size": 4' in file.read_text()


def test_render_writes_the_docs_again_without_measuring(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.run_one(FAKE, ["--write"])
    written = page.read_text()
    page.write_text(PAGE)
    monkeypatch.setattr(runner, "MODULES", {"fake": "fake"})
    monkeypatch.setattr(runner, "load", {"fake": FAKE}.__getitem__)
    called(["--render"], monkeypatch)
    assert page.read_text() == written


def test_result_keeps_four_digits_of_a_figure(tmp_path: Path) -> None:
    table = Table(
        name="a",
        title="A",
        headings=("", "x", "y"),
        rows=(("row", 0.123456, (12345.6, 1.23456)), ("none", None, 7)),
    )
    written = results.Run(FAKE).result((table,), {})
    file = tmp_path / "a.json"
    results.write(written, file)
    assert "0.1235" in file.read_text()
    assert "12346.0" in file.read_text()
    assert "1.235" in file.read_text()
