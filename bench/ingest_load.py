"""Event streams for `ingest.py`, and the process that publishes them on real sockets.

Events are maps with the fields of vLLM 0.32. Every stream has two phases: `warm` brings each publisher's cache into a
state to start from, `measured` is what counts. The last event of a phase stores a block that only that phase has, so that
a consumer can be asked whether it is through.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Literal

import msgspec
import zmq

Mix = Literal["bulk", "churn"]
Phase = Literal["warm", "measured"]
PHASES: tuple[Phase, Phase] = ("warm", "measured")

BLOCK_SIZE = 16
BULK_BLOCKS = 512
"""Blocks of one store: a chunk of 8k tokens in chunked prefill."""

CONVERSATIONS = 32
"""Conversations that a publisher decodes at one time in the churn mix; each message stores and removes a block of each."""

BASE_BLOCKS = 4
"""Blocks that a conversation has before its churning one."""

SUBSCRIBE_TIMEOUT_MS = 30_000
_VOCABULARY = 128_000
_SUBSCRIBED = 1


class Stored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """A store as vLLM 0.32 publishes it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int = BLOCK_SIZE
    lora_id: int | None = None
    medium: str = "GPU"
    lora_name: str | None = None
    extra_keys: list[None] | None = None
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class Removed(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    """A removal as vLLM 0.32 publishes it."""

    block_hashes: list[int]
    medium: str = "GPU"
    group_idx: int = 0


WireEvent = Stored | Removed


@dataclass(frozen=True)
class Load:
    """What is published.

    Attributes:
        mix: which kind of events.
        n_publishers: publishers that send at the same time.
        n_messages: measured messages of each publisher.
    """

    mix: Mix
    n_publishers: int
    n_messages: int

    @property
    def n_block_events(self) -> int:
        """Blocks that the measured messages store and remove, over all publishers."""
        blocks = BULK_BLOCKS if self.mix == "bulk" else 2 * CONVERSATIONS
        return self.n_publishers * (self.n_messages * blocks + 1)

    @property
    def residencies(self) -> int:
        """Blocks each publisher holds in the end."""
        ends = len(PHASES)
        if self.mix == "bulk":
            return BULK_BLOCKS * (1 + self.n_messages) + ends
        return CONVERSATIONS * (BASE_BLOCKS + 1) + ends

    @property
    def probe(self) -> array[int]:
        """Tokens of a prompt that every publisher holds whole."""
        return array("I", _prompt("shared-0", self.probe_blocks).token_ids)

    @property
    def probe_blocks(self) -> int:
        """Blocks of `probe`."""
        return BULK_BLOCKS if self.mix == "bulk" else BASE_BLOCKS

    def messages(self, publisher: int, phase: Phase) -> list[bytes]:
        """Payloads of one phase of one publisher, in order."""
        batches = self._bulk(publisher, phase) if self.mix == "bulk" else self._churn(publisher, phase)
        batches[-1] = [*batches[-1], _prompt(phase, 1)]
        return [msgspec.msgpack.encode([1.8e9 + n, events, 0]) for n, events in enumerate(batches)]

    def n_messages_in(self, phase: Phase) -> int:
        """Messages of one phase of each publisher."""
        return 1 if phase == "warm" else self.n_messages

    def _bulk(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """Whole prompts, every second one shared by all publishers."""
        if phase == "warm":
            return [[_prompt("shared-0", BULK_BLOCKS)]]
        numbers = range(1, self.n_messages + 1)
        names = [f"shared-{n}" if (publisher + n) % 2 else f"{publisher}-{n}" for n in numbers]
        return [[_prompt(name, BULK_BLOCKS)] for name in names]

    def _churn(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """Conversations, half of them shared, whose last block is replaced by another with every message."""
        names = [f"shared-{n}" if n % 2 == 0 else f"{publisher}-{n}" for n in range(CONVERSATIONS)]
        bases = [_prompt(name, BASE_BLOCKS) for name in names]
        rng = random.Random(f"leaves of {publisher}")
        leaves = [[_leaf(rng, base) for base in bases] for _ in range(self.n_messages + 1)]
        if phase == "warm":
            return [[*bases, *leaves[0]]]
        return [
            [event for pair in zip(map(_removal, old), new, strict=True) for event in pair]
            for old, new in pairwise(leaves)
        ]


def phase_probe(phase: Phase) -> array[int]:
    """Tokens of the block that a publisher stores last in a phase."""
    return array("I", _prompt(phase, 1).token_ids)


@cache
def _prompt(name: str, n_blocks: int) -> Stored:
    rng = random.Random(name)
    tokens = rng.choices(range(_VOCABULARY), k=n_blocks * BLOCK_SIZE)
    hashes = [rng.getrandbits(63) for _ in range(n_blocks)]
    return Stored(hashes, None, tokens, extra_keys=[None] * n_blocks)


def _leaf(rng: random.Random, base: Stored) -> Stored:
    tokens = rng.choices(range(_VOCABULARY), k=BLOCK_SIZE)
    return Stored([rng.getrandbits(63)], base.block_hashes[-1], tokens, extra_keys=[None])


def _removal(stored: Stored) -> Removed:
    return Removed(stored.block_hashes)


def publish(pipe: Connection, load: Load) -> None:
    """Body of the publishing process: tells its addresses, then sends a phase whenever told to, until told None.

    Sockets queue without bound, so nothing is dropped however slow the consumer is.
    """
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * load.n_publishers + 64)
    sockets = [_bind(context) for _ in range(load.n_publishers)]
    streams = {
        phase: [load.messages(number, phase) for number in range(load.n_publishers)] for phase in PHASES
    }
    pipe.send([str(socket.getsockopt_string(zmq.LAST_ENDPOINT)) for socket in sockets])
    while (phase := pipe.recv()) is not None:
        first = 0
        if phase == "warm":
            for socket in sockets:
                _wait_for_subscriber(socket)
        else:
            first = load.n_messages_in("warm")
        for number, payloads in enumerate(zip(*streams[phase], strict=True), first):
            seq = number.to_bytes(8, "big")
            for socket, payload in zip(sockets, payloads, strict=True):
                socket.send_multipart((b"kv@bench", seq, payload), copy=False)
    context.destroy(linger=0)


def _bind(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """An XPUB socket: to subscribers a PUB, but it tells of subscriptions, so no message is sent before its reader is there."""
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.setsockopt(zmq.RCVTIMEO, SUBSCRIBE_TIMEOUT_MS)
    socket.bind("tcp://127.0.0.1:*")
    return socket


def _wait_for_subscriber(socket: zmq.Socket[bytes]) -> None:
    while socket.recv()[0] != _SUBSCRIBED:
        continue
