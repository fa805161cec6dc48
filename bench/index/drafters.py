"""CPU time per block event of engines whose block hashes cover the next tokens too, beside that of others.

Ends with status 1 if such an event costs more than twice as much, or if a consumer does not end up with what was published.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..common.benchmark import Benchmark
from ..common.processes import child, receive
from ..common.tables import Table
from .columns import Column
from .fleet import BLOCK_SIZE, Blocks
from .loads import IngestLoad
from .publisher import PHASES, Phase, Publisher, Stored, WireEvent, publishing
from .sections.ingest import consume

MOST = 2.0
"""Times that a block event with a lookahead may cost."""

_LOADS = (IngestLoad("bulk", 8, 64), IngestLoad("churn", 8, 256))
_AFTER = 7
"""The token after the last block of every event."""


class DraftersStored(Stored, frozen=True, tag="BlockStored"):
    """A store of an engine with a drafter that needs the next token of every block."""

    lookahead_token_ids: tuple[tuple[int], ...] = ()


@dataclass(frozen=True)
class DraftersLoad:
    """Another load's events, with the next token of every block. Implements `Load`."""

    load: IngestLoad

    @property
    def n_publishers(self) -> int:
        """See `Load.n_publishers`."""
        return self.load.n_publishers

    def n_messages(self, phase: Phase) -> int:
        """See `Load.n_messages`."""
        return self.load.n_messages(phase)

    def messages(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """See `Load.messages`."""
        return [[*map(_with_lookahead, batch)] for batch in self.load.messages(publisher, phase)]

    def last_block(self, phase: Phase) -> Blocks:
        """See `Load.last_block`."""
        return self.load.last_block(phase)

    @property
    def probe(self) -> Blocks:
        """See `IngestLoad.probe`."""
        return self.load.probe


def _with_lookahead(event: WireEvent) -> WireEvent:
    if not isinstance(event, Stored):
        return event
    tokens = [*event.token_ids, _AFTER]
    return DraftersStored(
        event.block_hashes,
        event.parent_block_hash,
        event.token_ids,
        extra_keys=event.extra_keys,
        lookahead_token_ids=tuple((tokens[end],) for end in range(BLOCK_SIZE, len(tokens), BLOCK_SIZE)),
    )


def _cpu_s(publisher: Publisher, load: IngestLoad | DraftersLoad, residencies: int) -> float:
    """Return the CPU seconds of a fresh consuming process for the measured phase.

    Raises:
        SystemExit: it does not hold what was published.
    """
    seconds = 0.0
    with child(consume, Column.NATIVE, load, publisher.addresses) as consumer:
        for phase in PHASES:
            receive(consumer)
            publisher.send(phase)
            seconds, _ = receive(consumer)
        found, _ = receive(consumer)
    if wrong := {n: found.get(n, 0) for n in range(load.n_publishers) if found.get(n, 0) != residencies}:
        raise SystemExit(f"{load}: blocks by publisher {wrong}, want {residencies} each")
    return seconds


def _ns_per_block(load: IngestLoad | DraftersLoad, of: IngestLoad, n_rounds: int) -> float:
    with publishing(load) as publisher:
        taken = [_cpu_s(publisher, load, of.residencies) for _ in range(n_rounds)]
    return 1e9 * median(taken) / of.n_block_events


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this check."""
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each stream, of which the median counts (3)"
    )


def run(options: argparse.Namespace) -> Sequence[Table]:
    """Measure each kind of traffic without and with a lookahead, in the native core."""
    costly: list[str] = []
    for load in _LOADS:
        usual, drafters = (_ns_per_block(each, load, options.rounds) for each in (load, DraftersLoad(load)))
        line = f"{load.mix}: {usual:.0f} ns per block event, with a lookahead {drafters:.0f} ns, {drafters / usual:.2f} times"
        print(line)
        if drafters > MOST * usual:
            costly.append(line)
    if costly:
        raise SystemExit("events with a lookahead cost too much")
    return []


BENCHMARK = Benchmark(name="drafters", about=__doc__, add_options=add_options, run=run, has_tables=False)
