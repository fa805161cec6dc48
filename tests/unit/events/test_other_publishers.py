"""Events of publishers other than vLLM and SGLang, from their published schemas."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.envelope import MAX_OBJECT_KEY, ObjectKey, parse_object_key
from kvatlas.events.errors import WireError
from kvatlas.events.model import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    HashSpace,
    MediumName,
    MultimodalKey,
)
from kvatlas.events.wire import decode_batch
from kvatlas.indexer.factory import index_core
from support.recording import read_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "other-publishers"
GPU, CPU = MediumName("GPU"), MediumName("CPU")
STORE = MediumName("MOONCAKE_CPU")
TOKENS = array("I", range(16))


class Sample(msgspec.Struct):
    name: str
    payload_b64: bytes


SAMPLES = {sample.name: sample.payload_b64 for sample in read_lines(GOLDEN / "samples.jsonl", Sample)}


def stored(*hashes: int, **more: object) -> BlockStored:
    values: dict[str, object] = {"parent": None, "tokens": TOKENS, "block_size": 8} | more
    return BlockStored(hashes=tuple(map(EngineHash, hashes)), **values)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def removed(*hashes: int, **more: object) -> BlockRemoved:
    return BlockRemoved(tuple(map(EngineHash, hashes)), **more)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


NO_TOKENS = array("I")
STANDARD = {"space": HashSpace.STANDARD, "tenant": "default"}
FLEET = {"space": HashSpace.FLEET, "tenant": "default"}


def copied(block: int, **more: object) -> BlockStored:
    """Return the event of a connector of vLLM 0.33 about one block of 16 tokens."""
    parent, tokens = EngineHash(99 + block) if block else None, array("I", range(16 * block, 16 * block + 16))
    return stored(100 + block, **{"parent": parent, "tokens": tokens, "block_size": 16, "medium": CPU} | more)


SIMPLE = {"extra_keys": (None,), "kind": "full_attention"}
EVENTS: dict[str, list[Event]] = {
    "vllm-umbp": [
        *(copied(block) for block in range(3)),
        copied(3, parent=None, tokens=NO_TOKENS),
        removed(102, medium=CPU),
    ],
    "vllm-simple-cpu": [*(copied(block, **SIMPLE) for block in range(3)), removed(102, medium=CPU)],
    "vllm-simple-disk": [copied(block, medium=MediumName("STORAGE"), **SIMPLE) for block in range(3)],
    "tensorrt-llm": [stored(11, 12), removed(12)],
    "tensorrt-llm-reset": [AllBlocksCleared()],
    "tensorrt-llm-windows": [
        stored(11, 12, group=0, window=32768),
        stored(11, 12, group=1, window=8),
        removed(11, group=1),
    ],
    "mooncake-standard": [
        stored(101, 102, tokens=NO_TOKENS, medium=CPU, **STANDARD),
        removed(102, medium=CPU, **STANDARD),
        AllBlocksCleared(everywhere=True, tenant="default"),
    ],
    "mooncake-tokens": [stored(1, 2, medium=CPU, tenant="default")],
    "mooncake-connector": [
        stored(0xAA, tokens=NO_TOKENS, medium=STORE, **FLEET),
        stored(tokens=NO_TOKENS, medium=STORE, **FLEET),
        removed(0xAA, medium=MediumName("MOONCAKE_DISK"), **FLEET),
    ],
    "mooncake-legacy": [
        stored(101, tokens=NO_TOKENS, medium=STORE, **STANDARD),
        AllBlocksCleared(everywhere=True, tenant="default"),
    ],
    "kvbm": [
        stored(11, tokens=TOKENS[:8]),
        stored(11, tokens=TOKENS[:8], medium=MediumName("CPU_TIER1")),
        removed(11, medium=MediumName("CPU_TIER2")),
    ],
    "lmcache-coordinator": [
        stored(0x1616161616161616, block_size=16, medium=MediumName("LMCACHE-L1")),
        removed(0x1616161616161616, medium=MediumName("LMCACHE-L1")),
    ],
}


@pytest.mark.parametrize("decode", [decode_batch, index_core().decode_batch], ids=["python", "native"])
@pytest.mark.parametrize("name", EVENTS)
def test_events_are_read_as_their_schema_means_them(name: str, decode: Callable[[bytes], Batch]) -> None:
    batch = decode(SAMPLES[name])
    assert list(batch) == EVENTS[name]
    assert (batch.rejected, int(batch.timestamp)) in [((), 1795360000), ((), 1795360001)]


def test_segments_of_images_become_extra_keys() -> None:
    (event,) = decode_batch(SAMPLES["tensorrt-llm-images"])
    assert isinstance(event, BlockStored)
    assert event.extra_keys == (None, (MultimodalKey("5f" * 32, -3),))
    assert event.tokens[:15] == TOKENS[:15]  # the last one names the image's content


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("101", ObjectKey(101, HashSpace.STANDARD), id="decimal"),
        pytest.param("0xFF", ObjectKey(255, HashSpace.STANDARD), id="hexadecimal"),
        pytest.param(str(2**64), None, id="more_than_64_bits"),
        pytest.param("prefix@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:2@" + "f" * 32, ObjectKey(2**64 - 1, HashSpace.FLEET, 2), id="vllm"),
        pytest.param("m@tp_rank:1@pcp0@dcp0@pp_rank:0@" + "0" * 64, ObjectKey(0, HashSpace.FLEET, 0, is_first_shard=False), id="vllm_second_shard"),
        pytest.param("m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" + "0" * 63 + "1", ObjectKey(1, HashSpace.FLEET), id="ascend"),
        pytest.param("m@pcp0@dcp0@head_or_tp_rank:0@" + "0" * 31 + "7@3", ObjectKey(7, HashSpace.FLEET, 0, is_first_shard=False), id="ascend_layer"),
        pytest.param("hello_key", None, id="any_text"),
        pytest.param("m@tp_rank:0@nothex", None, id="no_digest"),
        pytest.param("1" * (MAX_OBJECT_KEY + 1), None, id="too_long"),
        pytest.param("", None, id="empty"),
    ],
)  # fmt: skip
def test_object_keys(name: str, wanted: ObjectKey | None) -> None:
    assert parse_object_key(name) == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        pytest.param({"additional_salt": "w8a8"}, "w8a8", id="salt"),
        pytest.param({"additional_salt": ""}, None, id="empty"),
        pytest.param({"additional_salt": "w8a8", "token_ids": None}, None, id="part_of_standard_hashes"),
    ],
)
def test_salt_of_an_envelope(fields: dict[str, object], wanted: str | None) -> None:
    event = {
        "event_type": "stored",
        "seq_hashes": [1, 2],
        "token_ids": list(TOKENS),
        "block_size": 8,
    } | fields
    for decode in (decode_batch, index_core().decode_batch):
        (read,) = decode(msgspec.msgpack.encode([1.5, [event], 0]))
        assert isinstance(read, BlockStored)
        assert (read.additional_salt, read.salt) == (wanted, None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=4),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "type", "event_type", "seq_hashes", "block_hashes", "parent_hash", "token_ids", "block_size", "medium", "tenant_id",
    "object_key", "connector_block_hash", "group_id", "lora_name", "mm_keys", "tp_rank",
    "additional_salt",
]  # fmt: skip


@given(
    st.fixed_dictionaries({"event_type": st.sampled_from(["stored", "removed", "cleared"]) | VALUES}),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8),
)
def test_any_envelope_is_read_or_refused(kind: dict[str, object], fields: dict[str, object]) -> None:
    payload = msgspec.msgpack.encode([1.5, [fields | kind], 0])
    for decode in (decode_batch, index_core().decode_batch):
        try:
            batch = decode(payload)
        except WireError:
            continue
        assert len(list(batch)) + len(batch.rejected) == 1
