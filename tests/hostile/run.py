"""Hostile input for a time against a running server: `python -m hostile.run`, or `make hostile`.

Each module of `generators` makes the inputs of one kind from a seed. Prints what was tried, for how long the event loop was
held, and the memory before and after; ends with status 1 if a task failed, the server was not ready, or the loop was held for
longer than `LONGEST_HELD_S` and the time for which the machine had no core for it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from support.ext_proc import BUFFERED, DUPLEX
from support.hostile import Target, attacked

GENERATORS = sorted(
    path.stem for path in (Path(__file__).parent / "generators").glob("*.py") if path.stem != "__init__"
)
LOOK_EVERY = 25
"""Inputs between two usual requests of others."""

LONGEST_HELD_S = 0.05
"""The promise of the product, for a machine with a core for the event loop."""

MEBI = 2**20


async def send(target: Target, kind: str, made: Any) -> None:
    """Send one input in the way of its kind."""
    match kind:
        case "bodies":
            path, body = made
            await target.send_body(path, body, config=(DUPLEX, BUFFERED)[target.n_inputs % 2])
        case "events":
            await target.send_events(made)
        case _:
            await target.send_connection(made)


class CoreWaits:
    """How long the event loop waited for a core while others had it, of which its own measure knows nothing.

    Args:
        pid: the server's process, whose first thread runs the loop.
    """

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._waited_s = self._read()
        self.longest_s = 0.0
        """Most of it between two looks, which bounds the longest wait."""

    def look(self) -> None:
        """Take what was waited since the last look."""
        waited_s = self._read()
        self.longest_s = max(self.longest_s, waited_s - self._waited_s)
        self._waited_s = waited_s

    def _read(self) -> float:
        return int(self._file.read_text().split()[1]) / 1e9


async def run(kind: str, *, seconds: float, seed: int) -> bool:
    """Send inputs of one kind, print the figures, and return whether all is well."""
    inputs: Iterator[Any] = importlib.import_module(f"hostile.generators.{kind}").inputs(Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        async with attacked(Path(folder)) as target:
            waits = CoreWaits(target.served.process.pid)
            before = await target.total("process_resident_memory_bytes")
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await send(target, kind, next(inputs))
                if target.n_inputs % LOOK_EVERY == 0:
                    await target.look()
                    waits.look()
            await target.look()
            waits.look()
            held = await target.total("kvatlas_loop_held_longest_seconds")
            failed = await target.total("kvatlas_tasks_failed_total")
            after = await target.total("process_resident_memory_bytes")
    sys.stdout.write(
        f"{kind}: seed {seed}, {target.n_inputs} inputs; loop held {held * 1000:.0f} ms at most, without a core for up to "
        f"{waits.longest_s * 1000:.0f} ms; usual request {target.slowest_s * 1000:.0f} ms at most; {before / MEBI:.0f} MiB before, {after / MEBI:.0f} MiB after; "
        f"{failed:.0f} task(s) failed\n"
    )
    sys.stdout.flush()
    return not failed and held < LONGEST_HELD_S + waits.longest_s


def main() -> int:
    """Run the generators of the command line, all without one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*GENERATORS, []], help="generators")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each")
    parser.add_argument("--seed", type=int, default=21, help="of all generators")
    options = parser.parse_args()
    kinds = options.kinds or GENERATORS
    done = [asyncio.run(run(kind, seconds=options.seconds, seed=options.seed)) for kind in kinds]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
