"""Numbered messages, and a sink that records the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from kvatlas.events._native import Inbox
from kvatlas.events.limits import StreamLimits
from kvatlas.events.model import Batch, BlockRemoved
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.runs import Run
from kvatlas.events.stream import Trust
from support.recording import Frame

QUICK = SubscriberOptions(
    recheck_s=0.2, idle_check_s=0.3, tick_s=0.02, limits=StreamLimits(reply_timeout_s=0.5, backoff_s=0.02)
)


@dataclass
class RecordingDraft:
    """Numbers of a snapshot, which take the place of the sink's own."""

    sink: RecordingSink
    numbers: list[int] = field(default_factory=list[int])

    def apply(self, batch: Batch) -> Iterator[None]:
        for event in batch:
            if isinstance(event, BlockRemoved):
                self.numbers.append(event.hashes[0])
            yield

    def adopt(self) -> None:
        self.sink.numbers[:] = self.numbers


@dataclass
class RecordingSink:
    """An event sink that records its calls, batches as their sequence numbers."""

    numbers: list[int] = field(default_factory=list[int])
    resets: list[str] = field(default_factory=list[str])
    rejections: list[str] = field(default_factory=list[str])
    trusts: list[Trust] = field(default_factory=list[Trust])
    snapshots: list[str] = field(default_factory=list[str])

    def apply(self, batch: Batch, *, live: bool) -> Iterator[None] | None:  # noqa: ARG002 - a parameter of EventSink
        self.rejections += batch.rejected
        self.numbers += [event.hashes[0] for event in batch if isinstance(event, BlockRemoved)]
        return None

    def apply_run(self, inbox: Inbox, seq: int) -> Run | None:  # noqa: ARG002 - parameters of EventSink
        return None

    def reset(self, reason: str) -> None:
        self.resets.append(reason)
        self.numbers.clear()

    def rejected(self, reason: str) -> None:
        self.rejections.append(reason)

    def draft(self) -> RecordingDraft:
        return RecordingDraft(self)

    def snapshot_ended(self, outcome: str, seconds: float) -> None:  # noqa: ARG002 - a parameter of EventSink
        self.snapshots.append(outcome)

    def trust_changed(self, old: Trust, new: Trust) -> None:  # noqa: ARG002 - a parameter of EventSink
        self.trusts.append(new)


def frame(seq: int, *, life: int = 0, topic: str = "kv@e@m", rank: int | None = 0) -> Frame:
    """Return a message whose one event carries its sequence number, stamped by its engine life."""
    payload = msgspec.msgpack.encode([1000.0 * life + seq + 1, [["BlockRemoved", [seq]]], rank])
    return Frame(0.0, "", (topic.encode(), seq.to_bytes(8, "big"), payload))


def frames(*seqs: int, life: int = 0, topic: str = "kv@e@m", rank: int | None = 0) -> list[Frame]:
    """Return several messages made by `frame`."""
    return [frame(seq, life=life, topic=topic, rank=rank) for seq in seqs]


def stored(seq: int, tokens: Sequence[int], *, topic: str = "kv@e@m", rank: int = 0) -> Frame:
    """Return a message in vLLM's current form: a whole prompt in blocks of 16 tokens, stored on the GPU."""
    n_blocks = len(tokens) // 16
    event = {
        "type": "BlockStored",
        "block_hashes": [hash(tuple(tokens[: 16 * (block + 1)])) & 2**63 - 1 for block in range(n_blocks)],
        "parent_block_hash": None,
        "token_ids": list(tokens[: 16 * n_blocks]),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    payload = msgspec.msgpack.encode([1000.0 + seq, [event], rank])
    return Frame(0.0, "", (topic.encode(), seq.to_bytes(8, "big"), payload))
