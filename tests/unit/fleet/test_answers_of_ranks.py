"""Recordings of two engines as the data-parallel ranks of one endpoint: the rank that ran a request shows in its events."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.stream import Trust
from kvatlas.events.wire import decode_batch
from kvatlas.fleet.audit_request import audit_request
from kvatlas.fleet.fleet import Fleet
from support.engine_recordings import VLLM, Recorded
from support.fleets import NOWHERE, make_config, make_fleet
from support.rating import routed_to
from support.recording import Frame, read_frames, read_lines

TIERS = [{"name": "gpu", "media": ["GPU"]}, {"name": "cpu", "media": ["CPU"]}]


class RecordedRank:
    """One recording, played into one rank of the endpoint `e`."""

    def __init__(self, fleet: Fleet, number: int, case: Path) -> None:
        self._fleet, self._number = fleet, number
        self._frames: list[Frame] = read_frames(case / "zmq.jsonl")
        self.requests = list(read_lines(case / "truth.jsonl", Recorded))
        self.n_wrong = 0

    def serve(self, request: Recorded) -> None:
        """Send a request here, whatever the decision expects, and audit the answer."""
        fleet = self._fleet
        self._play(request.t0)
        prefix = fleet.atlas.prefix(array("I", request.tokens), lora=request.lora, salt=request.salt)
        (candidate,) = fleet.candidates(prefix, now=0.0)
        prediction = fleet.routed(candidate, prefix, now=0.0)
        match = candidate.prefix
        usable = match.rank_usable_tokens.get(self._number, 0) if match is not None else 0
        self.n_wrong += usable != request.cached_tokens
        self._play(request.t1)
        found = audit_request(
            routed_to(msgspec.structs.replace(candidate, trust=Trust.LIVE), n_tokens=prefix.n_tokens),
            fleet,
            prompt_tokens=prefix.n_tokens,
            cached_tokens=request.cached_tokens,
            prediction=prediction,
        )
        if found is not None:
            fleet.audited(found, now=0.0)

    def _play(self, until: float) -> None:
        endpoint = self._fleet.get("e")
        rank = endpoint.rank(self._number) if endpoint is not None else None
        assert rank is not None
        while self._frames and self._frames[0].received_at <= until:
            for _ in rank.apply(decode_batch(self._frames.pop(0).parts[2]), live=True) or ():
                pass


@pytest.mark.parametrize(
    ("first", "second", "most_wrong"),
    [
        pytest.param("r1_reset", "o1_cpu_placeholder", [2, 0], id="one_rank_is_reset"),
        pytest.param("o2_cpu_selfdesc", "r1_reset", [0, 2], id="the_other_is_reset"),
        pytest.param("r1_reset", "r1_reset", [3, 9], id="both_are_reset_and_get_the_same_prompts"),
        pytest.param("e3_eagle_offload", "e2_eagle_drop", [2, 2], id="both_drop_the_last_block"),
    ],
)
async def test_answers_of_several_ranks_teach_what_those_of_one_would(
    first: str, second: str, most_wrong: list[int]
) -> None:
    addresses = EndpointAddresses(
        HostPort("10.0.0.1", 8000), None, tuple(RankAddresses(rank, NOWHERE, None) for rank in (0, 1))
    )
    async with make_fleet(make_config(tiers=TIERS)) as fleet:
        fleet.add("e", addresses, {})
        ranks = [RecordedRank(fleet, number, VLLM / case) for number, case in enumerate((first, second))]
        for pair in zip(*(rank.requests for rank in ranks), strict=False):
            for rank, request in zip(ranks, pair, strict=True):
                rank.serve(request)
        audit = fleet.audit.of("e")
    assert [rank.n_wrong <= most for rank, most in zip(ranks, most_wrong, strict=True)] == [True, True], (
        [rank.n_wrong for rank in ranks],
        Counter(audit.verdicts if audit is not None else ()),
    )
