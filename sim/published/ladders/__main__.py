"""Published runs with rising rates on simulated servers.

Use: python -m kvatlas.sim.published.ladders [--policy NAME ...] [--seeds N] [--granularity N] [--jobs N] [--write FILE]
                                                                                                     (or: make ladders)

In a checkout, a run with the default seeds and granularity writes the page `benchmark-ladders.md` in docs. Otherwise --write names the page.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...replay.policies import named_policy
from .cases import GRANULARITY, SEEDS, run_all
from .page import page
from .published import LADDERS

_DOCUMENT = Path(__file__).parents[3] / "docs" / "benchmark-ladders.md"


def main() -> None:
    """Replay every arm, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m kvatlas.sim.published.ladders", description=__doc__)
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help="policy beside the guides'; repeatable"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs per case")
    parser.add_argument("--granularity", type=int, default=GRANULARITY, help="blocks simulated as one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    arguments = parser.parse_args()
    policies = tuple(named_policy(name).name for name in arguments.policy or ("latency",))
    seeds, granularity = arguments.seeds, arguments.granularity
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    n_arms = sum(len(ladder.arms) for ladder in LADDERS)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replays", total=n_arms * (1 + len(policies)) * seeds)
        results = run_all(
            LADDERS,
            policies,
            seeds=seeds,
            granularity=granularity,
            jobs=arguments.jobs,
            progress=lambda: progress.advance(task),
        )
    text = page(results, policies, seeds=seeds, granularity=granularity)
    is_default = (seeds, granularity) == (SEEDS, GRANULARITY) and _DOCUMENT.parent.is_dir()
    file: Path | None = arguments.write or (_DOCUMENT if is_default else None)
    if file is None:
        Console().print(text, markup=False, highlight=False)
    else:
        file.write_text(text)


if __name__ == "__main__":
    main()
