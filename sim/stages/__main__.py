"""Policies for servers with roles, on several ratios of prefill to decode servers.

Use: python -m kvatlas.sim.stages [--conversation FILE] [--policy NAME ...] [--limit N] [--seeds N] [--jobs N] [--kept FILE]
         [--write FILE]                                                                      (or: make stages ARGS=...)

Every point is kept in a file, so an interrupted run goes on where it was. In a checkout, a run with the recorded conversations and
all policies writes the page `stages.md` in docs. Otherwise --write names the page.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...events.errors import KVAtlasError
from ..load_curves.point import Kept
from ..replay.policies import STAGE_POLICIES, named_policy
from .cases import LIMIT, cases, measure
from .page import page, verdict_table

_DOCUMENT = Path(__file__).parents[2] / "docs" / "stages.md"
OURS = "joint"
SEEDS = 4
"""The p99 of a single replay rests on ten requests."""


def main() -> None:
    """Replay all points that are missing, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m kvatlas.sim.stages", description=__doc__)
    parser.add_argument("--policy", action="append", metavar="NAME", help="beside joint; repeatable")
    parser.add_argument(
        "--conversation", type=Path, metavar="FILE", help="recorded conversations of Mooncake"
    )
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help="requests per replay")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="replays per point")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="known points")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    arguments = parser.parse_args()
    limit, seeds = arguments.limit, arguments.seeds
    try:
        named = [named_policy(name).name for name in arguments.policy or STAGE_POLICIES]
        policies = tuple(dict.fromkeys((*named, OURS)))
        found = cases(arguments.conversation, limit=limit)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(
                "replays", total=sum(len(each.loads) for each in found) * len(policies) * seeds
            )
            measured = measure(
                found,
                policies,
                Kept(arguments.kept),
                seeds=seeds,
                jobs=arguments.jobs,
                progress=lambda: progress.advance(task),
            )
    except KVAtlasError as error:
        parser.error(str(error))
    Console().print(verdict_table(measured, OURS), highlight=False, markup=False, soft_wrap=True)
    is_whole = arguments.conversation is not None and arguments.policy is None and _DOCUMENT.parent.is_dir()
    file: Path | None = arguments.write or (_DOCUMENT if is_whole else None)
    if file is not None:
        file.write_text(page(measured, ours=OURS, seeds=seeds, limit=limit))
        Console().print(f"wrote {file}")


if __name__ == "__main__":
    main()
