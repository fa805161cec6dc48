"""Comparison of block hashes: do two servers give the same block the same hash?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....events.model import EngineHash
from ....fleet.rank import Rank
from ....indexer.hash_table import HashColumns, rows
from ..check import Finding, State
from .pools import Server

MAX_COMPARED = 256
"""Blocks of one server that are looked for on the others, the newest ones."""

MAX_HASHES = 1_000_000
"""Servers that know more hashes are not compared: a copy of theirs would take too long."""

LEAST = 4
"""Fewest blocks that both servers hold for a judgement."""


def seed_misfits(prefills: Sequence[Server], decodes: Sequence[Server]) -> Iterator[Finding]:
    """Yield the decode servers that give blocks other hashes than a prefill server.

    The index has each block under a key of our own, so that one block is known under the hash of each engine.
    Cost: O(hashes of one prefill server + servers).
    """
    first = next((each for each in prefills if _n_hashes(each)), None)
    rank = _rank(first) if first is not None else None
    if first is None or rank is None:
        return
    columns = rank.ledger.hashes.table.columns()
    sample = list(rows(HashColumns(*(column[-MAX_COMPARED:] for column in columns))))
    for server in decodes:
        theirs = _rank(server)
        if theirs is None or theirs is rank:
            continue
        held = [engine_hash for engine_hash, known in sample if theirs.ledger.has(known.key)]
        if len(held) >= LEAST and not any(_knows(theirs, engine_hash) for engine_hash in held):
            yield Finding(
                State.WARN,
                f"block hashes: of {len(held)} blocks that {server.name} and {first.name} hold, none has the same hash on both",
                "one PYTHONHASHSEED and one --prefix-caching-hash-algo for all servers, if they share a store; "
                "transfers from server to server, such as NIXL's, do without",
            )


def _rank(server: Server) -> Rank | None:
    ranks = server.endpoint.ranks if server.endpoint is not None else []
    return ranks[0] if ranks else None


def _n_hashes(server: Server) -> int:
    rank = _rank(server)
    n_hashes = len(rank.ledger.hashes) if rank is not None else 0
    return n_hashes if n_hashes <= MAX_HASHES else 0


def _knows(rank: Rank, engine_hash: EngineHash) -> bool:
    return rank.ledger.hashes.get(engine_hash) is not None
