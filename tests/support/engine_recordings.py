"""Recordings of engines newer than vLLM 0.32, one folder a case, and how many of their answers the index predicts."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec

from kvatlas.events.model import Batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.recording import Frame, read_frames, read_lines

GOLDEN = Path(__file__).parents[1] / "golden"
VLLM, SGLANG = GOLDEN / "vllm-0.33.0", GOLDEN / "sglang-0.5.23"
TIERS = (("gpu", ("GPU",)), ("cpu", ("CPU", "CPU_PINNED")), ("storage", ("STORAGE",)))


class Recorded(msgspec.Struct, frozen=True):
    """One request of a `truth.jsonl`: its prompt, and the tokens that the engine found in its caches."""

    i: int
    t0: float
    t1: float
    tokens: list[int]
    cached_tokens: int
    lora: str | None = None
    salt: str | None = None
    rank_served: int = 0


def atlas_of(core: IndexCore, n_ranks: int = 1) -> Atlas:
    atlas = Atlas(tiers=TierTable([TierSpec(*tier) for tier in TIERS]), seed=0, core=core)
    atlas.add("e", n_ranks=n_ranks)
    return atlas


class Replay:
    """One case, replayed into an index request by request; `dropped` is None if only events tell that number.

    Attributes:
        wrong: (request, predicted tokens, cached tokens) of every wrong prediction.
        n_requests: requests of the case.
    """

    def __init__(self, case: Path, core: IndexCore, *, dropped: int | None = 0) -> None:
        frames = read_frames(case / "zmq.jsonl")
        self._publishers = sorted({frame.endpoint for frame in frames})
        self._core, self.atlas = core, atlas_of(core, len(self._publishers))
        for ledger in self.atlas.ledgers("e"):
            ledger.set_reuse(dropped or 0, is_guess=dropped is None)
        self.wrong: list[tuple[int, int, int]] = []
        requests = list(read_lines(case / "truth.jsonl", Recorded))
        self.n_requests, played = len(requests), 0
        for request in requests:
            while played < len(frames) and frames[played].received_at <= request.t0:
                self._apply(frames[played])
                played += 1
            predicted = self._predicted(request)
            if predicted != request.cached_tokens:
                self.wrong.append((request.i, predicted, request.cached_tokens))

    def _apply(self, frame: Frame) -> None:
        batch: Batch = self._core.decode_batch(frame.parts[2])
        assert batch.rejected == ()
        self.atlas.apply("e", self._publishers.index(frame.endpoint), batch)

    def _predicted(self, request: Recorded) -> int:
        prefix = self.atlas.prefix(array("I", request.tokens), lora=request.lora, salt=request.salt)
        match = self.atlas.match(prefix).get("e")
        return match.rank_usable_tokens.get(request.rank_served, 0) if match else 0
