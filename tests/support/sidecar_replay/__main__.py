"""`python -m support.sidecar_replay [GROUP or CASE ...]`, in `tests`: what the stand-in does otherwise than the reference sidecar."""

from __future__ import annotations

import argparse
import asyncio

from support.sidecar.reference import reference_sidecar
from support.sidecar_replay.play import differences
from support.sidecar_replay.recordings import groups, known_differences, read_group


async def main() -> None:
    """Print each group with its right, wrong and left out cases, and the differences."""
    parser = argparse.ArgumentParser(prog="python -m support.sidecar_replay", description=__doc__)
    parser.add_argument("names", nargs="*", help="groups or cases; all if there are none")
    parser.add_argument(
        "--reference", action="store_true", help="play them against the reference sidecar itself"
    )
    options = parser.parse_args()
    known = known_differences()
    totals = [0, 0, 0]
    for group in groups():
        cases = [
            each for each in read_group(group) if not options.names or {group, each.name} & {*options.names}
        ]
        played = [each for each in cases if known.reason_to_leave_out(each) is None]
        start = reference_sidecar if options.reference else None
        wrong = [(case.name, found) for case in played if (found := await differences(case, start))]
        if cases:
            counts = (len(played) - len(wrong), len(wrong), len(cases) - len(played))
            totals = [one + other for one, other in zip(totals, counts, strict=True)]
            print(f"{group:16} {counts[0]:3} same {counts[1]:3} different {counts[2]:3} left out", flush=True)
        for name, found in wrong:
            print(f"    {name}: {' | '.join(found)}", flush=True)
    print("{} same, {} different, {} left out".format(*totals))


if __name__ == "__main__":
    asyncio.run(main())
