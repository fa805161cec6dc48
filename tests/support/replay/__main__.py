"""`python -m support.replay [GROUP or CASE ...]`, in `tests`: what kvatlas answers otherwise than the reference picker."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from support.replay.recordings import PLUGINS, groups, read_group
from support.replay.replay import replayed


async def main() -> None:
    """Print each group with its right and wrong cases, and a case's first difference, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m support.replay", description=__doc__)
    parser.add_argument("names", nargs="*", help="groups or cases; all if there are none")
    parser.add_argument("--folder", type=Path, default=PLUGINS, help="folder of the recordings")
    parser.add_argument("--all", action="store_true", help="print every difference of a case")
    options = parser.parse_args()
    n_right = n_all = 0
    for group in groups(options.folder):
        cases = [
            case
            for case in read_group(group, options.folder)
            if not options.names or {group, case.name} & {*options.names}
        ]
        wrong: list[tuple[str, list[str]]] = []
        async for case, found in replayed(cases):
            if found:
                wrong.append((case.name, found))
        if cases:
            print(f"{group:18} {len(cases) - len(wrong):3} right {len(wrong):3} wrong", flush=True)
        for name, found in wrong:
            for each in found if options.all else found[:1]:
                print(f"    {name}: {each}", flush=True)
        n_right, n_all = n_right + len(cases) - len(wrong), n_all + len(cases)
    print(f"{n_right} of {n_all} right")


if __name__ == "__main__":
    asyncio.run(main())
