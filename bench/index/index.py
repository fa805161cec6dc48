"""The index beside Dynamo's: match, ingest, memory, pauses.

Ends with status 1 if two columns do not agree on a result. docs/benchmarks.md says what is measured and how. Dynamo's columns
need `.venv/bin/python -m pip install --no-deps ai-dynamo-runtime` (217 MB).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import uvloop
from rich.console import Console
from rich.progress import Progress

from ..common.benchmark import Benchmark
from ..common.machine import version
from ..common.processes import raise_file_limit
from ..common.tables import Table
from .columns import Column
from .filled import filled
from .report import fleet_table, section_table, verdict_table
from .results import Section
from .sections.contention import measure_contention
from .sections.ingest import measure_ingest
from .sections.keys import measure_keys
from .sections.match import measure_match
from .sections.memory import measure_memory
from .sections.removal import measure_removal
from .sections.scale import measure_scale, scale_section
from .sections.stores import measure_stores
from .sizes import SIZES, Size

_DYNAMO = "ai-dynamo-runtime"
_OURS = [Column.REFERENCE, Column.NATIVE]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--size", choices=SIZES, default="full", help="how much is measured (full)")
    parser.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="--size quick: under a minute"
    )
    parser.add_argument(
        "--without-dynamo", action="store_true", help="our columns alone, even if Dynamo is installed"
    )


def run(options: argparse.Namespace) -> list[Table]:
    """Measure the index in all columns."""
    raise_file_limit()
    # as an option, since the docs show only results of the default ones: those beside Dynamo
    options.without_dynamo = options.without_dynamo or version(_DYNAMO) is None
    columns = _OURS if options.without_dynamo else list(Column)
    if options.without_dynamo:
        print("without Dynamo's columns: `pip install --no-deps ai-dynamo-runtime` (217 MB) adds them")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        sections = uvloop.run(measure(SIZES[options.size], columns, progress))
    tables = [section_table(section, columns) for section in sections]
    return [*tables, verdict_table(sections), fleet_table(SIZES[options.size])]


async def measure(size: Size, columns: Sequence[Column], progress: Progress) -> list[Section]:
    """Return every section, in the order to show.

    What runs in processes of its own comes while the filled indexes get their huge pages, for which the system takes its
    time. Removal leaves less behind than there was, so it comes last.

    Raises:
        SystemExit: columns do not agree on a result, or a process died.
    """
    async with filled(size.fleet, columns, progress) as everything:
        ingest = measure_ingest(columns, size, progress)
        scale = measure_scale(columns, size, progress)
        memory = measure_memory(columns, scale, size, progress)
        match = await measure_match(everything, size, progress)
        contention = await measure_contention(everything, size, progress)
        stores = measure_stores(everything, size, progress)
        keys = measure_keys(columns, size, progress)
        removal = await measure_removal(everything, size, progress)
    return [*match, contention, ingest, stores, memory, removal, scale_section(scale), keys]


BENCHMARK = Benchmark(
    name="index", about=__doc__, add_options=add_options, run=run, distributions=("kvatlas", _DYNAMO)
)
