"""The contract of `decode_batch`: every core gives the events, rejections and errors of `events.wire`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile.generators.events import inputs
from kvatlas.events import wire
from kvatlas.events.errors import WireError
from kvatlas.events.model import Batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE, index_core
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.recording import read_frames, read_lines

CORE = index_core()
RUNS = ["run1", "run3", "run4", "run5_then_run6_restart", "run7_dp", "run8"]
REMOVED: list[object] = ["BlockRemoved", [1, -2, b"\x01" * 32], "CPU", 1]
STORED: dict[str, object] = {
    "type": "BlockStored", "block_hashes": [7, 2**64 - 1], "parent_block_hash": None, "token_ids": [1, 200, 70_000, 2**32 - 1],
    "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": "adapter", "extra_keys": [["adapter", "salt"], None],
    "group_idx": 3, "kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": None,
}  # fmt: skip


def told(batch: Batch) -> object:
    return (
        repr(batch.timestamp),
        batch.rank,
        sorted(batch.rejected),
        list(batch),
        len(batch),
        batch.removed_media,
        batch.adapters,
    )


def outcome(decode: Callable[[bytes], Batch], payload: bytes) -> object:
    try:
        return told(decode(payload))
    except WireError as error:
        return error.reason, str(error)


def same(payload: bytes) -> bool:
    return outcome(CORE.decode_batch, payload) == outcome(wire.decode_batch, payload)


class Sample(msgspec.Struct):
    payload_b64: bytes


@pytest.mark.parametrize("run", RUNS)
def test_recorded_payloads_are_read_alike(run: str, golden: Path) -> None:
    assert all(same(frame.parts[2]) for frame in read_frames(golden / f"{run}_zmq.jsonl"))


def test_legacy_samples_are_read_alike(golden: Path) -> None:
    assert all(same(sample.payload_b64) for sample in read_lines(golden / "legacy_samples.jsonl", Sample))


@pytest.mark.parametrize(
    "changed", [{}, {"lora_id": 4}, {"lora_name": None, "lora_id": 4}, {"lora_name": ""}]
)
@pytest.mark.parametrize("field", [name for name in STORED if name != "type"])
@pytest.mark.parametrize(
    "value",
    [
        None, 0, 1, -1, 2**31 - 1, 2**31, 2**40, 1.5, True, "", "text", "Ä", "x" * 300, b"", b"\x05", [], [None], [0], [[]],
        [[1, 2]], ["a"], [["a"]], [["a", "b"], ["c"]], [["a"], ["adapter"]], [[["image", 3]]], [2**32], [2**32 - 1], [-5], {},
    ],
)  # fmt: skip
def test_odd_values_are_read_alike(changed: dict[str, object], field: str, value: object) -> None:
    assert same(msgspec.msgpack.encode([1.5, [STORED | changed | {field: value}, REMOVED], 0]))


@pytest.mark.parametrize(
    "changed", [{}, {"parent_block_hash": 5}, {"extra_keys": None}, {"token_ids": [1] * 8}, {"token_ids": []}]
)
@pytest.mark.parametrize(
    "field", ["cache_salt", "session_id", "locality", "ownership", "lookahead_token_ids", "more"]
)
@pytest.mark.parametrize(
    "value",
    [
        None, 0, -1, 1.5, True, "", "text", "Ä", "x" * 300, b"", b"\x05", [], [None], [0], [[]], [["a"]], {}, {"a": 1},
        [[70_000], [5]], [[70_000, 2**32 - 1], [5, 6]], [[70_000], [5, 6]], [[1], [5]], [[70_000]], [[70_000], [2**32]],
    ],
)  # fmt: skip
def test_newer_fields_are_read_alike(changed: dict[str, object], field: str, value: object) -> None:
    known = STORED | changed
    events = [{field: value} | known, known | {field: value}, {"type": "BlockStored", field: value} | known]
    removed = {"type": "BlockRemoved", "block_hashes": [1], field: value}
    assert same(msgspec.msgpack.encode([1.5, [*events, removed, REMOVED], 0]))


ODD_BATCHES: dict[str, object] = {
    "integer_time": [1, []],
    "negative_time": [-1, []],
    "no_time": [float("nan"), []],
    "negative_rank": [1.5, [], -1],
    "huge_rank": [1.5, [], 2**40],
    "rank_is_no_number": [1.5, [], True],
    "four_parts": [1.5, [], 0, "more"],
    "one_part": [1.5],
    "no_events": [1.5, None],
    "map": {"ts": 1.5, "events": [REMOVED]},
    "wrapped_event": [1.5, [msgspec.msgpack.encode(REMOVED)]],
    "wrapped_twice": [1.5, [msgspec.msgpack.encode(msgspec.msgpack.encode(REMOVED))]],
    "short_events": [1.5, [["AllBlocksCleared"], {"type": "AllBlocksCleared"}, [], {}, None]],
    "odd_tags": [1.5, [[*REMOVED, "more"], [b"BlockRemoved", [1]], {b"type": "BlockRemoved"}]],
    "token_pairs": [1.5, [["BlockStored", [1], None, [[1, 2], [3, 4]], 2]]],
    "field_order": [1.5, [dict(reversed(STORED.items())), {"x": 1} | STORED, STORED | {"x": 1}]],
    "many_small_events": [1.5, [None] * 1000],
}


@pytest.mark.parametrize("batch", ODD_BATCHES.values(), ids=ODD_BATCHES)
def test_odd_batches_are_read_alike(batch: object) -> None:
    assert same(msgspec.msgpack.encode(batch))


WHOLE = msgspec.msgpack.encode([1.5, [STORED, REMOVED, STORED | {"extra_keys": None}], 0])


@pytest.mark.parametrize("end", range(len(WHOLE)))
def test_cut_payloads_are_refused_alike(end: int) -> None:
    assert same(WHOLE[:end])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_alike(payload: bytes) -> None:
    assert same(payload)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.binary(max_size=3))
def test_damaged_payloads_are_read_alike(at: int, byte: int, tail: bytes) -> None:
    assert same(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :] + tail)


TOKENS = st.lists(
    st.integers(0, 2**32 + 1) | st.integers(0, 300) | st.sampled_from([2**16 - 1, 2**16, 2**32 - 1])
)


@given(TOKENS)
def test_token_ids_of_any_size_are_read_alike(tokens: list[int]) -> None:
    assert same(msgspec.msgpack.encode([1.5, [["BlockStored", [1], None, tokens, 1]]]))


MANY_TOKENS = msgspec.msgpack.encode(
    [1.5, [STORED | {"token_ids": [1, 200, 70_000, 300] * 8, "block_size": 16}, REMOVED], 0]
)


@given(st.integers(0, len(MANY_TOKENS) - 1), st.integers(0, 255))
def test_damaged_lists_of_token_ids_are_read_alike(at: int, byte: int) -> None:
    assert same(MANY_TOKENS[:at] + bytes([byte]) + MANY_TOKENS[at + 1 :])


@pytest.mark.parametrize("seed", range(3))
def test_hostile_payloads_leave_the_same_state_and_counters(seed: int) -> None:
    atlases = [
        (
            core,
            Atlas(tiers=TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]), seed=1, core=core),
        )
        for core in (REFERENCE, CORE)
    ]
    for _, atlas in atlases:
        atlas.add("a")
    first, second = (atlas.ledger("a", 0) for _, atlas in atlases)
    for payload in islice(inputs(Random(seed)), 40):
        for core, atlas in atlases:
            with contextlib.suppress(WireError):
                atlas.apply("a", 0, core.decode_batch(payload))
        assert asdict(first.counters) == asdict(second.counters)
    assert first.dump(now=0.0) == second.dump(now=0.0)


@pytest.mark.parametrize(
    ("more", "medium"),
    [
        pytest.param({"locality": "REMOTE"}, "STORAGE/REMOTE", id="remote"),
        pytest.param({"locality": "LOCAL"}, "STORAGE", id="local"),
        pytest.param({"locality": "elsewhere"}, "STORAGE", id="unknown_place"),
        pytest.param({"locality": 7, "ownership": ["x"]}, "STORAGE", id="no_texts"),
        pytest.param({"ownership": "kvcr"}, "STORAGE/KVCR", id="owner"),
        pytest.param({"ownership": "x" * 257}, "STORAGE", id="endless_owner"),
        pytest.param({"locality": "REMOTE", "ownership": "fs"}, "STORAGE/REMOTE/FS", id="both"),
    ],
)
def test_locality_and_owner_qualify_the_medium(more: dict[str, object], medium: str) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "STORAGE", "group_idx": 0}
    payload = msgspec.msgpack.encode([1.5, [STORED | {"medium": "STORAGE"} | more, removed | more], 0])

    assert same(payload)
    assert [event.medium for event in CORE.decode_batch(payload)] == [medium, medium]


def test_array_of_a_removal_may_name_locality_and_owner() -> None:
    payload = msgspec.msgpack.encode([1.5, [[*REMOVED, "REMOTE", "kvcr"]], 0])

    assert same(payload)
    (event,) = CORE.decode_batch(payload)
    assert event.medium == "CPU/REMOTE/KVCR"
