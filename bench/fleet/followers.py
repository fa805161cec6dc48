"""Cost of one more replica for engines and the network: each event and each scrape once more.

An engine's events of a prompt of 8,000 tokens that is new, and of as many blocks that it evicts, are published as vLLM 0.32 does, to one
and to two subscribers. A scrape is one page of vLLM's metrics, as recorded.
"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection

import msgspec
import zmq

from ..common.processes import child, receive
from ..common.tables import Table
from .scrape import BODY

N_BLOCKS, BLOCK_SIZE, N_PROMPTS, ROUNDS = 500, 16, 500, 5
VOCABULARY = 151_936
MIB = 2**20


def followers(rate: float) -> Table:
    """Return the table of what a replica costs that follows engines which together compute `rate` prompts a second."""
    payloads = _payloads()
    n_bytes = sum(map(len, payloads)) / len(payloads)
    one, two = (min(_cpu_s(payloads, n) for _ in range(ROUNDS)) / len(payloads) for n in (1, 2))
    page = BODY.read_bytes()
    rows = (
        ("events of one prompt", f"{n_bytes / 1024:.1f} KiB", f"{1e6 * max(0.0, two - one):.0f} us"),
        (
            f"events at {rate:.0f} prompts/s, all engines",
            f"{rate * n_bytes / MIB:.1f} MiB/s",
            f"{100 * rate * max(0.0, two - one):.1f} % of a core",
        ),
        ("one scrape of one engine", f"{len(page) / 1024:.1f} KiB", "see scraping"),
    )
    headings = ("what engines send once more", "bytes", "CPU of engines")
    return Table(name="followers", title="one more replica", headings=headings, rows=rows)


def _payloads() -> list[bytes]:
    rng, found = random.Random(1), list[bytes]()
    for number in range(N_PROMPTS):
        stored, gone = ([rng.getrandbits(64) for _ in range(N_BLOCKS)] for _ in range(2))
        tokens = [rng.randrange(VOCABULARY) for _ in range(N_BLOCKS * BLOCK_SIZE)]
        extras = {"lora_name": None, "extra_keys": [None] * N_BLOCKS}
        place = {"medium": "GPU", "group_idx": 0}
        events = [
            {"type": "BlockRemoved", "block_hashes": gone, **place},
            {
                "type": "BlockStored",
                "block_hashes": stored,
                "parent_block_hash": None,
                "token_ids": tokens,
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                **place,
                **extras,
                "kv_cache_spec_kind": "full_attention",
            },
        ]
        found.append(msgspec.msgpack.encode([1.8e9 + number, events, 0]))
    return found


def _cpu_s(payloads: list[bytes], n_subscribers: int) -> float:
    """Return the CPU seconds of a publisher, with its I/O thread, until all subscribers have everything."""
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    with child(_subscribe, f"tcp://127.0.0.1:{port}", n_subscribers, len(payloads)) as pipe:
        for _ in range(n_subscribers):
            socket.recv()
        begin = time.process_time()
        for number, payload in enumerate(payloads):
            socket.send_multipart((b"kv@bench", number.to_bytes(8, "big"), payload), copy=False)
        receive(pipe)
        spent_s = time.process_time() - begin
    context.destroy(linger=0)
    return spent_s


def _subscribe(pipe: Connection, address: str, n_sockets: int, n_messages: int) -> None:
    context = zmq.Context()
    sockets = [context.socket(zmq.SUB) for _ in range(n_sockets)]
    for socket in sockets:
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        socket.subscribe(b"")
    for _ in range(n_messages):
        for socket in sockets:
            socket.recv_multipart()
    pipe.send(True)
    context.destroy(linger=0)
