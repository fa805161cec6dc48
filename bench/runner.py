"""Benchmarks of kvatlas.

python -m bench                              the index beside Dynamo's; same as `index --write`
python -m bench NAME [options]               one benchmark; NAME --help shows its options
python -m bench NAME --write                 the same, and its figures go into bench/results and the docs
python -m bench all [--write]                every benchmark with figures in the docs, one after the other
python -m bench --render                     the docs once more from bench/results; measures nothing
python -m bench --list                       this text
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .catalog import MODULES, load
from .common import docs, results
from .common.benchmark import Benchmark
from .common.results import Result, Run
from .common.tables import grid

_DEFAULT = ["index", "--write"]
_ROOT = Path(__file__).parents[1]
_WIDTH = 160


def main() -> None:
    """Run what the command line names."""
    given = sys.argv[1:]
    match given:
        case ["--list" | "--help" | "-h"]:
            print(listing())
        case ["--render"]:
            _render(*(name for name in MODULES if load(name).has_tables))
        case ["all"] | ["all", "--write"]:
            raise SystemExit(run_all(given[1:]))
        case [name, *options] if name in MODULES:
            run_one(load(name), options)
        case [name, *_] if not name.startswith("-") or name in {"--list", "--render"}:
            print(f"python -m bench: cannot read {' '.join(given)!r}\n\n{listing()}", file=sys.stderr)
            raise SystemExit(2)
        case _:
            run_one(load(_DEFAULT[0]), [*_DEFAULT[1:], *given])


def listing() -> str:
    """Return how to use the command, and one line per benchmark."""
    lines = [f"    {name:16} {load(name).summary}" for name in MODULES]
    return "\n".join([(__doc__ or "").rstrip(), "", *lines])


def run_one(benchmark: Benchmark, given: Sequence[str]) -> None:
    """Run a benchmark, show its tables, and write its result as the options say."""
    parser = _parser(benchmark)
    options = parser.parse_args(given)
    run = Run(benchmark)
    tables = tuple(benchmark.run(options))
    result = run.result(tables, own_options(options))
    if tables:
        _show(result)
    if options.json is not None:
        results.write(result, options.json)
    if not options.write:
        return
    if result.options != own_options(parser.parse_args([])):
        print("neither bench/results nor the docs were written, since these are not the default options")
        return
    results.write(result, results.file_of(benchmark.name))
    _render(benchmark.name)


def run_all(given: Sequence[str]) -> int:
    """Run every benchmark with figures in the docs, each in a fresh process; returns 1 if one failed, else 0."""
    failed: list[str] = []
    for name in [name for name in MODULES if load(name).has_tables]:
        begin = time.monotonic()
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "bench", name, *given]
        if subprocess.run(command, cwd=_ROOT, check=False).returncode:  # noqa: S603 - ourselves
            failed.append(name)
        print(f"== {name} took {time.monotonic() - begin:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all done")
    return 1 if failed else 0


def _parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {benchmark.name}",
        description=benchmark.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmark.add_options(parser)
    if benchmark.has_tables:
        parser.add_argument(
            "--write",
            action="store_true",
            help="write bench/results and the docs, if the options are the defaults",
        )
    else:
        parser.set_defaults(write=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    return parser


def own_options(options: argparse.Namespace) -> results.Options:
    """Return the options of the benchmark itself; processes of a computation do not change its figures."""
    return {name: value for name, value in vars(options).items() if name not in {"jobs", "json", "write"}}


def _show(result: Result) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=max(console.width, _WIDTH))
    for each in grid(result.tables):
        console.print(each)
    console.print(result.about, markup=False)


def _render(*benchmarks: str) -> None:
    changed = [page.relative_to(_ROOT).as_posix() for page in docs.render(benchmarks)]
    print(f"written: {', '.join(changed) or 'nothing, the docs show these figures already'}")
