"""Payloads of every engine version, and malformed ones."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.errors import WireError
from kvatlas.events.lazy_batch import MAX_NAMES
from kvatlas.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    MediumName,
    MultimodalKey,
)
from kvatlas.events.wire import MAX_EVENT_BYTES, MAX_EVENTS, MAX_PAYLOAD_BYTES, decode_batch
from support.recording import read_frames, read_lines

RUNS = ["run1", "run3", "run4", "run5", "run5_then_run6_restart", "run6", "run7_dp", "run8"]
STORED: dict[str, object] = {
    "type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1, 2],
    "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None,
}  # fmt: skip


def pack(*events: object, rank: object = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def stored(**changes: Any) -> BlockStored:
    (event,) = decode_batch(pack(STORED | changes)).events
    assert isinstance(event, BlockStored)
    return event


@pytest.mark.parametrize("run", RUNS)
def test_every_recorded_event_is_read(run: str, golden: Path) -> None:
    batches = [decode_batch(frame.parts[2]) for frame in read_frames(golden / f"{run}_zmq.jsonl")]
    assert sum(len(batch.events) for batch in batches) > 0
    assert [reason for batch in batches for reason in batch.rejected] == []


class Written(msgspec.Struct, array_like=True):
    """A batch in the writer's own structs; an event is a positional list or a map."""

    timestamp: float
    events: list[list[object] | dict[str, object]]
    rank: int | None = None


class Sample(msgspec.Struct):
    """One payload of an engine version, and the writer's own decoding."""

    payload_b64: bytes
    decoded: Written


def test_every_legacy_sample_is_read_as_its_writer_meant_it(golden: Path) -> None:
    samples = list(read_lines(golden / "legacy_samples.jsonl", Sample))
    assert len(samples) == 116
    for sample in samples:
        batch, written = decode_batch(sample.payload_b64), sample.decoded
        wanted = (written.timestamp, written.rank, (), len(written.events))
        assert (batch.timestamp, batch.rank, batch.rejected, len(batch.events)) == wanted, sample
        for ours, theirs in zip(batch.events, written.events, strict=True):
            assert_same(ours, theirs)


FIELDS = {"type": 0, "block_hashes": 1, "token_ids": 3, "block_size": 4}
"""Positions of the compared fields in a positional event."""


def assert_same(ours: object, theirs: list[object] | dict[str, object]) -> None:
    """Compare a decoded event with the writer's own struct."""

    def get(name: str) -> Any:
        return theirs[name] if isinstance(theirs, dict) else theirs[FIELDS[name]]

    assert type(ours).__name__ == get("type")
    if isinstance(ours, (BlockStored, BlockRemoved)):
        assert list(ours.hashes) == [folded(h) for h in get("block_hashes")]
    if isinstance(ours, BlockStored):
        assert (list(ours.tokens), ours.block_size) == (get("token_ids"), get("block_size"))


def folded(value: int | dict[str, str]) -> int:
    """Fold a hash of the samples (a number, or `{"hex": ...}` for bytes) to 64 bits."""
    return int(value["hex"][-16:], 16) if isinstance(value, dict) else value % 2**64


@pytest.mark.parametrize(
    ("field", "value", "attribute", "wanted"),
    [
        pytest.param("block_hashes", [-16], "hashes", (2**64 - 16,), id="signed_hash"),
        pytest.param("block_hashes", [b"\x01" * 24 + b"\x00" * 7 + b"\x05"], "hashes", (5,), id="bytes_hash"),
        pytest.param("block_hashes", [b"\x05"], "hashes", (5,), id="short_bytes_hash"),
        pytest.param("parent_block_hash", 0, "parent", None, id="zero_parent_is_none"),
        pytest.param("parent_block_hash", -1, "parent", 2**64 - 1, id="signed_parent"),
        pytest.param("token_ids", [[1, 2], [2, 3]], "tokens", array("I", [1, 2]), id="token_pairs"),
        pytest.param("token_ids", [], "tokens", array("I"), id="no_tokens"),
        pytest.param("medium", None, "medium", "GPU", id="no_medium_is_gpu"),
        pytest.param("medium", "cpu_pinned", "medium", "CPU_PINNED", id="medium_case"),
        pytest.param("lora_id", 3, "lora_name", "#3", id="adapter_known_by_number"),
        pytest.param("lora_name", "a", "lora_name", "a", id="adapter_known_by_name"),
        pytest.param("group_idx", 2, "group", 2, id="group"),
        pytest.param("kv_cache_spec_sliding_window", 64, "window", 64, id="window"),
        pytest.param("extra_keys", [["s"], None], "extra_keys", (("s",), None), id="salt"),
        pytest.param(
            "extra_keys", [["a", ["h", -3]]], "extra_keys", (("a", MultimodalKey("h", -3)),), id="multimodal"
        ),
        pytest.param("extra_keys", [[b"\x0f"]], "extra_keys", (("0f",),), id="embeddings_digest"),
        pytest.param("token_ids", [[1, 2], [2, 3]], "lookahead", array("I", [3]), id="token_after_pairs"),
        pytest.param("lookahead_token_ids", [[9]], "lookahead", array("I", [9]), id="lookahead"),
        pytest.param("lookahead_token_ids", None, "lookahead", None, id="no_lookahead"),
        pytest.param("cache_salt", "s", "salt", "s", id="salt_of_sglang"),
        pytest.param("cache_salt", "", "salt", None, id="empty_salt"),
        pytest.param("anything_new", {"deep": [1]}, "block_size", 2, id="unknown_key"),
    ],
)
def test_field_is_read_in_every_form(field: str, value: object, attribute: str, wanted: object) -> None:
    assert getattr(stored(**{field: value}), attribute) == wanted


def test_lookahead_of_a_windowed_group_that_leaves_blocks_out_is_read() -> None:
    event = stored(
        block_hashes=[7, 8],
        token_ids=[1] * 8,
        kv_cache_spec_kind="sliding_window",
        lookahead_token_ids=[[5], [9]],
    )
    assert (event.lookahead, len(event.tokens)) == (array("I", [9]), 8)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param({"type": "BlockMoved"}, "unknown_tag", id="unknown_tag"),
        pytest.param({"block_hashes": []}, "missing_tag", id="missing_tag"),
        pytest.param([], "not_an_event", id="empty_array"),
        pytest.param(7, "not_an_event", id="number"),
        pytest.param(b"\xc1", "not_msgpack", id="broken_bin"),
        pytest.param(STORED | {"block_hashes": "x"}, "bad_hashes", id="hashes_no_array"),
        pytest.param(STORED | {"block_hashes": [1.5]}, "bad_hash", id="float_hash"),
        pytest.param(STORED | {"block_hashes": [True]}, "bad_hash", id="bool_hash"),
        pytest.param(STORED | {"block_hashes": [b""]}, "bad_hash", id="empty_hash"),
        pytest.param(STORED | {"token_ids": [-1]}, "bad_tokens", id="negative_token"),
        pytest.param(STORED | {"token_ids": [2**32]}, "bad_tokens", id="huge_token"),
        pytest.param(STORED | {"token_ids": [b"a"]}, "bad_tokens", id="bytes_token"),
        pytest.param(STORED | {"token_ids": [()]}, "bad_tokens", id="empty_pair"),
        pytest.param(STORED | {"block_size": -1}, "bad_block_size", id="negative_block_size"),
        pytest.param(STORED | {"block_size": 2**40}, "bad_block_size", id="absurd_block_size"),
        pytest.param(STORED | {"medium": 3}, "bad_medium", id="medium_number"),
        pytest.param(STORED | {"medium": "x" * 300}, "bad_medium", id="long_medium"),
        pytest.param(STORED | {"extra_keys": [[dict[str, object]()]]}, "bad_extra_keys", id="odd_extra_key"),
        pytest.param(STORED | {"extra_keys": [[["item", 2**63]]]}, "bad_extra_keys", id="absurd_offset"),
        pytest.param(STORED | {"extra_keys": [[["item", True]]]}, "bad_extra_keys", id="boolean_offset"),
        pytest.param(STORED | {"cache_salt": 3}, "bad_salt", id="salt_number"),
        pytest.param(STORED | {"lookahead_token_ids": 3}, "bad_lookahead", id="lookahead_number"),
        pytest.param(
            STORED | {"block_hashes": list[int](), "token_ids": list[int](), "lookahead_token_ids": 3},
            "bad_lookahead",
            id="lookahead_number_without_blocks",
        ),
        pytest.param(STORED | {"lookahead_token_ids": [[1], [2]]}, "bad_lookahead", id="lookahead_of_two"),
        pytest.param(STORED | {"lookahead_token_ids": [[1] * 65]}, "bad_lookahead", id="long_lookahead"),
        pytest.param(STORED | {"lookahead_token_ids": [[b"a"]]}, "bad_tokens", id="lookahead_bytes"),
        pytest.param(
            STORED | {"block_hashes": [1, 2], "token_ids": [1, 2, 3, 4], "lookahead_token_ids": [[9], [9]]},
            "bad_lookahead",
            id="lookahead_of_another_prompt",
        ),
        pytest.param(STORED | {"group_idx": -1}, "bad_group", id="negative_group"),
        pytest.param(STORED | {"more": bytes(MAX_EVENT_BYTES)}, "event_too_large", id="event_too_large"),
        pytest.param(STORED | {"block_hashes": [7] * 65_537}, "too_many_hashes", id="too_many_hashes"),
    ],
)
def test_bad_event_costs_only_itself(event: object, reason: str) -> None:
    batch = decode_batch(pack(STORED, event, {"type": "AllBlocksCleared"}))
    assert (len(batch.events), batch.rejected) == (2, (reason,))


def test_media_and_adapters_are_reported_up_to_a_bound() -> None:
    names = [f"m{number}" for number in range(MAX_NAMES + 10)]
    removals: list[object] = [["BlockRemoved", [1], name] for name in names]
    batch = decode_batch(pack(*removals, *(STORED | {"lora_name": name} for name in names)))
    assert (len(batch), len(batch.removed_media), len(batch.adapters)) == (
        2 * len(names),
        MAX_NAMES,
        MAX_NAMES,
    )


def test_event_with_broken_text_costs_only_itself() -> None:
    good, bad = msgspec.msgpack.encode(STORED), msgspec.msgpack.encode(STORED | {"medium": "ab"})
    bad = bad.replace(b"\xa2ab", b"\xa2\xff\xfe")
    payload = b"\x93" + msgspec.msgpack.encode(1.5) + b"\x93" + good + bad + good + b"\x00"
    batch = decode_batch(payload)
    assert (len(batch.events), batch.rejected, batch.rank) == (2, ("not_msgpack",), 0)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([1.5, [STORED]], id="two_elements"),
        pytest.param([1.5, [STORED], None], id="no_rank"),
        pytest.param([1.5, [STORED], 0, "more"], id="four_elements"),
        pytest.param({"ts": 1.5, "events": [STORED], "data_parallel_rank": 0}, id="map"),
        pytest.param([1, [msgspec.msgpack.encode(STORED)]], id="event_in_bin"),
        pytest.param([1.5, [["BlockStored", [7], None, [1, 2], 2]], 0], id="shortest_array"),
        pytest.param([1.5, [["BlockStored", [7], None, [1, 2], 2, *[None] * 20]], 0], id="longest_array"),
    ],
)
def test_batch_is_read_in_every_form(batch: object) -> None:
    (event,) = decode_batch(msgspec.msgpack.encode(batch)).events
    assert isinstance(event, BlockStored)
    assert (event.hashes, list(event.tokens), event.block_size) == ((7,), [1, 2], 2)


def test_short_removal_and_clear_are_read() -> None:
    batch = decode_batch(pack(["BlockRemoved", [1]], ["BlockRemoved", [2], "CPU", 1], ["AllBlocksCleared"]))
    cpu = BlockRemoved((EngineHash(2),), MediumName("CPU"), 1)
    assert batch.events == (BlockRemoved((EngineHash(1),)), cpu, AllBlocksCleared())


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        pytest.param(b"", "not_msgpack", id="empty"),
        pytest.param(b"\xdd\xff\xff\xff\xff", "not_msgpack", id="array_that_claims_4_billion"),
        pytest.param(b"\x91" * 100_000, "not_msgpack", id="deep_nesting"),
        pytest.param(msgspec.msgpack.encode(5), "not_a_batch", id="number"),
        pytest.param(msgspec.msgpack.encode([1.5]), "not_a_batch", id="no_events"),
        pytest.param(msgspec.msgpack.encode(["now", []]), "not_a_batch", id="text_timestamp"),
        pytest.param(bytes(MAX_PAYLOAD_BYTES + 1), "too_large", id="too_large"),
        pytest.param(
            msgspec.msgpack.encode([1.5, [0] * (MAX_EVENTS + 1)]), "too_many_events", id="too_many_events"
        ),
    ],
)
def test_payload_that_is_no_batch_is_refused_with_its_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(WireError) as error:
        decode_batch(payload)
    assert error.value.reason == reason


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    reason: str | None = None
    try:
        decode_batch(payload)
    except WireError as error:
        reason = error.reason
    assert reason in {None, "not_msgpack", "not_a_batch"}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def tagged(event: object) -> object:
    """Tag a map as a stored event; return anything else unchanged."""
    return cast("dict[object, object]", event) | {"type": "BlockStored"} if isinstance(event, dict) else event


@given(st.lists(st.dictionaries(st.sampled_from(list(STORED)), JUNK) | JUNK, max_size=4), JUNK)
def test_any_events_are_read_or_rejected_one_by_one(events: list[object], rank: object) -> None:
    batch = decode_batch(msgspec.msgpack.encode([1.5, [STORED, *map(tagged, events)], rank]))
    assert len(batch.events) + len(batch.rejected) == len(events) + 1
    assert isinstance(batch.events[0], BlockStored)
