"""The sessions behind the blocks of a prompt, added to the answer of `/query` for those who ask for them."""

from __future__ import annotations

import msgspec

from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...indexer.prefix import Prefix
from .session_models import SessionTokens


def with_sessions(answer: bytes, fleet: Fleet, prefix: Prefix) -> bytes:
    """Return the answer of `/query` with `sessions` for each of its instances. Cost: O(instances x blocks)."""
    instances = msgspec.json.decode(answer, type=dict[str, dict[str, dict[str, object]]])
    for endpoint in fleet:
        shown = instances.get(endpoint.instance.tenant, {}).get(endpoint.instance.name)
        if shown is not None:
            shown["sessions"] = [each.model_dump() for each in sessions_of(endpoint, prefix)]
    return msgspec.json.encode(instances)


def sessions_of(endpoint: Endpoint, prefix: Prefix) -> list[SessionTokens]:
    """Return the sessions that stored a prompt's leading blocks in the fastest tier of each rank."""
    found: list[SessionTokens] = []
    for rank in endpoint.ranks:
        ledger, size = rank.ledger, rank.ledger.block_size
        if size is None or not ledger.sessions:
            continue
        keys = prefix.keys(size, ledger.lookahead)
        held = keys[: ledger.leading(keys)]
        found += [
            SessionTokens(dp_rank=rank.number, session_id=run.session, tokens=run.n_blocks * size)
            for run in ledger.sessions.of(held)
        ]
    return found
