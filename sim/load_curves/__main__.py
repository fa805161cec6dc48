"""Policies over the load, on every workload.

Use: python -m kvatlas.sim.load_curves [--policy NAME ...] [--workload NAME ...] [--conversation FILE] [--ours NAME] [--seeds N]
         [--close-seeds N] [--contents-seeds N] [--jobs N] [--kept FILE] [--write FILE]               (or: make curves ARGS=...)

Every point is kept in a file, so an interrupted run goes on where it was. In a checkout, a run over all workloads writes
the page `benchmark-load.md` in docs and its plots. Otherwise --write names the page.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from ...events.errors import KVAtlasError
from ..replay.policies import named_policy
from ..workloads import select, workloads
from .curves import FRACTIONS, Settings, curves
from .page import page, plot, sustained_table, verdict_table
from .point import Kept

_DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmark-load.md"
OURS = "latency"
CONTENTS = ("latency", "latency-approximate")
"""One policy with exact and with approximate contents."""
POLICIES = ("round-robin", "precise", "optimized-baseline", "affinity", "dynamo", OURS)


def main() -> None:
    """Compute all points that are missing, print what each policy sustains, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m kvatlas.sim.load_curves", description=__doc__)
    parser.add_argument("--policy", action="append", metavar="NAME", help="built-in policy; repeatable")
    parser.add_argument("--ours", default=OURS, metavar="NAME", help="policy to compare with the others")
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="repeatable; all if absent"
    )
    parser.add_argument(
        "--conversation", type=Path, metavar="FILE", help="recorded conversations of Mooncake"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="recorded requests to replay")
    parser.add_argument("--fractions", default=",".join(map(str, FRACTIONS)), metavar="N,...", help="loads")
    parser.add_argument("--seeds", type=int, default=1, help="traces per load")
    parser.add_argument(
        "--close-seeds",
        type=int,
        default=4,
        metavar="N",
        help="traces per load where ours is not at least 10 %% under the best other policy; 1 for no more than elsewhere",
    )
    parser.add_argument(
        "--contents-seeds",
        type=int,
        default=1,
        metavar="N",
        help="traces per load that compare exact with approximate contents; 0 for none",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--kept", type=Path, default=Path("load-curves.jsonl"), metavar="FILE", help="known points"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    arguments = parser.parse_args()
    console = Console()
    try:
        known = workloads(arguments.conversation, limit=arguments.limit)
        found = select(known, arguments.workload)
        policies = tuple(named_policy(name).name for name in arguments.policy or POLICIES)
        ours = named_policy(arguments.ours).name
        fractions = tuple(float(each) for each in arguments.fractions.split(","))
        settings = Settings(
            policies if ours in policies else (*policies, ours),
            ours,
            arguments.seeds,
            arguments.close_seeds,
            fractions,
            CONTENTS if arguments.contents_seeds else (),
            arguments.contents_seeds,
        )
        results = curves(
            found,
            settings,
            Kept(arguments.kept),
            jobs=arguments.jobs,
            progress=lambda text: console.print(text, highlight=False),
        )
    except KVAtlasError as error:
        parser.error(str(error))
    console.print(sustained_table(results, settings.policies), highlight=False)
    console.print(verdict_table(results, ours), highlight=False)
    is_whole = not arguments.workload and _DOCUMENT.parent.is_dir()
    file: Path | None = arguments.write or (_DOCUMENT if is_whole else None)
    if file is not None:
        (file.parent / "images").mkdir(parents=True, exist_ok=True)
        left_out = [each.name for each in known if each not in found]
        file.write_text(page(results, settings, left_out=left_out))
        for each in results:
            plot(each, settings.policies, file.parent / "images")
        console.print(f"wrote {file}")


if __name__ == "__main__":
    main()
