"""The native parts beside each other in the threads of a server: `make tsan` runs this under ThreadSanitizer.

A server's event loop decodes events, applies them and matches prompts; threads encode long texts meanwhile, and each part
releases the GIL while it works.
"""

from __future__ import annotations

import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from kvatlas.api.http2.native import has_http2
from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.tokenization.encoding.segment_encoder import SegmentEncoder
from support.http2 import HEADERS, Client, framed, session
from support.payloads import payload
from support.tokenizer_families import LLAMA3, byte_level

BLOCK, N_BLOCKS, N_PROMPTS = 16, 64, 40
TIERS = [TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",), capacity=500)]


def prompt(number: int) -> array[int]:
    return array("I", (number * 1_000_003 + token for token in range(BLOCK * N_BLOCKS)))


def messages(number: int) -> list[bytes]:
    """Return events of one prompt: stored, copied to the CPU, and its tail removed."""
    hashes = tuple(EngineHash(1 + number * N_BLOCKS + block) for block in range(N_BLOCKS))
    stored = BlockStored(hashes, None, prompt(number), BLOCK)
    copied = BlockStored(hashes, None, array("I"), 0, MediumName("CPU"))
    return [payload([stored]), payload([copied]), payload([BlockRemoved(hashes[N_BLOCKS // 2 :])])]


def served(n_rounds: int) -> list[int]:
    """Do the work of an event loop; returns the matched blocks of each prompt."""
    core = index_core("native")
    atlas = Atlas(tiers=TierTable(TIERS), seed=7, core=core)
    atlas.add("a")
    matched: list[int] = []
    for _ in range(n_rounds):
        matched.clear()
        for number in range(N_PROMPTS):
            for message in messages(number):
                atlas.apply("a", 0, core.decode_batch(message))
            match = atlas.match(atlas.prefix(prompt(number)))
            matched.append(sum(match["a"].held.union_blocks) if "a" in match else 0)
        atlas.dump("a", 0, now=0.0)
        client = Client(session())
        stream = client.open(HEADERS)
        client.send(stream, framed(bytes(100_000)))
    return matched


@pytest.mark.skipif(index_core().name != "native" or not has_http2(), reason="needs the native parts")
def test_native_parts_work_in_all_threads_of_a_server_at_once() -> None:
    tokenizer = byte_level(LLAMA3)
    encoder = SegmentEncoder(tokenizer, cache_bytes=20_000)
    texts = [
        " ".join(f"{word}{n}" for n in range(2000)) for word in ("night", "day", "river")
    ]  # no part comes twice
    wanted = [array("I", tokenizer.encode(text).ids) for text in texts]
    expected = served(1)
    assert min(expected) >= N_BLOCKS // 2
    is_done = threading.Event()

    def encode(_: int) -> int:
        n_rounds = 0
        while not is_done.is_set():
            assert [encoder.tokens(text, add_special_tokens=True) for text in texts] == wanted
            n_rounds += 1
        return n_rounds

    def decode() -> None:
        core, long = index_core("native"), payload([BlockStored((), None, prompt(0) * 20, BLOCK)])
        while not is_done.is_set():
            core.decode_batch(long)

    with ThreadPoolExecutor(4) as threads:
        encoding = threads.map(encode, range(2))
        decoding, serving = threads.submit(decode), threads.submit(partial(served, 3))
        try:
            assert served(3) == expected
        finally:
            is_done.set()
        assert all(n > 0 for n in encoding)
        decoding.result()
        assert serving.result() == expected
