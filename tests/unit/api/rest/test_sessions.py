"""Sessions in the answer of `/query`."""

from __future__ import annotations

import json
from array import array

from kvatlas.api.rest.sessions import with_sessions
from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import BlockStored, EngineHash
from support.fleets import NOWHERE, make_fleet

BLOCK = 4
TOKENS = array("I", range(6 * BLOCK))
NOTHING = {"longest_matched": 0}


def stored(first: int, end: int, session: str | None) -> BlockStored:
    return BlockStored(
        tuple(map(EngineHash, range(first + 1, end + 1))),
        EngineHash(first) if first else None,
        TOKENS[first * BLOCK : end * BLOCK],
        BLOCK,
        session=session,
    )


async def test_each_rank_tells_whose_requests_stored_what_it_holds() -> None:
    ranks = (RankAddresses(0, NOWHERE, None), RankAddresses(1, NOWHERE, None))
    async with make_fleet() as fleet:
        for name in ("a", "b"):
            fleet.add(name, EndpointAddresses(HostPort("127.0.0.1", 1), None, ranks), {})
        fleet.atlas.apply("a", 0, [stored(0, 2, "s1"), stored(2, 5, "s2")])
        fleet.atlas.apply("a", 1, [stored(0, 1, None)])
        answer = json.dumps({"default": {"a": NOTHING, "b": NOTHING}}).encode()
        found = json.loads(with_sessions(answer, fleet, fleet.atlas.prefix(TOKENS)))
    assert found == {
        "default": {
            "a": NOTHING
            | {
                "sessions": [
                    {"dp_rank": 0, "session_id": "s1", "tokens": 2 * BLOCK},
                    {"dp_rank": 0, "session_id": "s2", "tokens": 3 * BLOCK},
                ]
            },
            "b": NOTHING | {"sessions": []},
        }
    }
