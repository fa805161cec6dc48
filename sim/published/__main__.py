"""The published tiered-cache benchmark on simulated servers.

Use: python -m kvatlas.sim.published [--seeds N] [--granularity N] [--jobs N] [--write FILE]          (or: make paper)

In a checkout, a run with the default seeds and granularity writes docs/benchmark-tiered.md and its plot. Otherwise --write
names the page.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .cases import GRANULARITY, PUBLISHED, SEEDS, VARIATIONS, run_setup
from .page import comparison, page, plot, variations
from .published import WORKLOADS

_DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmark-tiered.md"


def main() -> None:
    """Replay every setup, print the tables, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m kvatlas.sim.published", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs per case")
    parser.add_argument("--granularity", type=int, default=GRANULARITY, help="blocks simulated as one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    arguments = parser.parse_args()
    seeds, granularity = arguments.seeds, arguments.granularity
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replays", total=len(VARIATIONS) * len(WORKLOADS) * 2 * seeds)
        results = {
            (setup.name, workload): run_setup(
                setup,
                workload,
                seeds=seeds,
                granularity=granularity,
                jobs=arguments.jobs,
                progress=lambda: progress.advance(task),
            )
            for setup in VARIATIONS
            for workload in WORKLOADS
        }
    console = Console()
    for workload in WORKLOADS:
        console.print(f"\n{workload}", style="bold")
        console.print(Markdown(comparison(results[PUBLISHED.name, workload], workload)))
        console.print(Markdown(variations(results, workload)))
    is_default = (seeds, granularity) == (SEEDS, GRANULARITY) and _DOCUMENT.parent.is_dir()
    file: Path | None = arguments.write or (_DOCUMENT if is_default else None)
    if file is not None:
        file.write_text(page(results, seeds=seeds, granularity=granularity))
        plot(results, file.parent / "images" / "benchmark-tiered.svg")
        console.print(f"wrote {file}")


if __name__ == "__main__":
    main()
