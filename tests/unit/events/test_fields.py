"""Events with long fields, and with more than any engine sends: read like short ones, or refused for a reason."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec
import pytest

from kvatlas.events.errors import WireError
from kvatlas.events.extra_keys import MAX_EXTRA_KEYS, MAX_ITEMS
from kvatlas.events.fields import MAX_DIGESTED, MAX_FIELDS, MAX_HASHES, MAX_PAIRS
from kvatlas.events.model import Batch, BlockStored, MultimodalKey
from kvatlas.events.wire import MAX_TEXTS, decode_batch
from kvatlas.indexer.factory import index_core

DECODERS = [decode_batch, index_core().decode_batch]
N = 4000
EMPTY: list[object] = []
NO_FIELDS: dict[str, object] = {}
STORED: dict[str, object] = {
    "type": "BlockStored", "block_hashes": list(range(1, N + 1)), "parent_block_hash": None, "token_ids": [70_000] * 2 * N,
    "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None,
}  # fmt: skip


def read(decode: Callable[[bytes], Batch], event: object) -> BlockStored:
    batch = decode(msgspec.msgpack.encode([1.5, [event], 0]))
    (found,) = batch
    assert isinstance(found, BlockStored)
    return found


@pytest.mark.parametrize("decode", DECODERS, ids=["python", "native"])
@pytest.mark.parametrize(
    ("changes", "attribute", "wanted"),
    [
        pytest.param({"block_hashes": [b"\x07" * 32] * N}, "hashes", (0x0707070707070707,) * N, id="digests"),
        pytest.param(
            {"token_ids": [[70_000, 5]] * 2 * N}, "tokens", array("I", [70_000] * 2 * N), id="pairs"
        ),
        pytest.param({"token_ids": [[70_000, 5]] * 2 * N}, "lookahead", array("I", [5]), id="after_pairs"),
        pytest.param(
            {"lookahead_token_ids": [[70_000] * 3] * N, "token_ids": [70_000] * 2 * N},
            "lookahead",
            array("I", [70_000] * 3),
            id="lookahead_longer_than_a_block",
        ),
        pytest.param({"extra_keys": [["adapter"]] * N}, "extra_keys", (("adapter",),) * N, id="names"),
        pytest.param(
            {"extra_keys": [["a", ["image", -3]], None] * (N // 2)},
            "extra_keys",
            (("a", MultimodalKey("image", -3)), None) * (N // 2),
            id="items",
        ),
        pytest.param(
            {"extra_keys": [["a", b"\x0f" * 8], None] * (N // 2)},
            "extra_keys",
            (("a", "0f" * 8), None) * (N // 2),
            id="digests_among_extra_keys",
        ),
        pytest.param(
            {"mm_keys": [[{"type": "mm_key", "hash": "5f", "start_offset": 3}], EMPTY] * (N // 2)},
            "extra_keys",
            ((MultimodalKey("5f", -3),), None) * (N // 2),
            id="segments",
        ),
        pytest.param(
            {"mm_keys": [None, [{"hash": "5f", "start_offset": 0}]]},
            "extra_keys",
            (None, (MultimodalKey("5f", 0),)),
            id="few",
        ),
        pytest.param({"new": [[EMPTY]] * 200_000}, "block_size", 2, id="unknown_field_of_many_values"),
        pytest.param({"medium": None, "session_id": "s" * 20_000}, "medium", "GPU", id="long_text"),
    ],
)
def test_long_fields_are_read_like_short_ones(
    decode: Callable[[bytes], Batch], changes: dict[str, object], attribute: str, wanted: object
) -> None:
    assert getattr(read(decode, STORED | changes), attribute) == wanted


@pytest.mark.parametrize("decode", DECODERS, ids=["python", "native"])
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(STORED | {f"more{n}": n for n in range(MAX_FIELDS)}, "too_many_fields", id="fields"),
        pytest.param(["BlockMoved", *range(MAX_FIELDS)], "too_many_fields", id="fields_of_an_unknown_event"),
        pytest.param({"type": "BlockStored", 7: 1}, "not_an_event", id="field_without_a_name"),
        pytest.param(STORED | {"block_hashes": [1] * (MAX_HASHES + 1)}, "too_many_hashes", id="hashes"),
        pytest.param(STORED | {"block_hashes": [EMPTY] * 20_000}, "bad_hash", id="arrays_as_hashes"),
        pytest.param(STORED | {"token_ids": [[1, 2]] * (MAX_PAIRS + 1)}, "bad_tokens", id="pairs"),
        pytest.param(STORED | {"token_ids": ["a"] * (MAX_TEXTS + 1)}, "bad_tokens", id="texts"),
        pytest.param(STORED | {"token_ids": [NO_FIELDS] * 20_000}, "bad_tokens", id="maps_as_tokens"),
        pytest.param(STORED | {"lookahead_token_ids": [EMPTY] * 70_000}, "bad_lookahead", id="lookaheads"),
        pytest.param(STORED | {"extra_keys": [["a"] * (MAX_EXTRA_KEYS + 1)]}, "bad_extra_keys", id="names"),
        pytest.param(STORED | {"extra_keys": [[["a", 1]] * (MAX_ITEMS + 1)]}, "bad_extra_keys", id="items"),
        pytest.param(STORED | {"extra_keys": [[b"a"]] * (MAX_DIGESTED + 1)}, "bad_extra_keys", id="digests"),
        pytest.param(STORED | {"extra_keys": [[EMPTY] * 20_000]}, "bad_extra_keys", id="empty_items"),
        pytest.param(STORED | {"mm_keys": [[NO_FIELDS]] * 20_000}, "bad_extra_keys", id="empty_segments"),
        pytest.param(STORED | {"medium": "x" * 20_000}, "bad_medium", id="long_text"),
        pytest.param(STORED | {"mm_keys": 3}, "bad_extra_keys", id="number_for_segments"),
        pytest.param(
            STORED | {"mm_keys": EMPTY, "extra_keys": [None]}, "bad_extra_keys", id="segments_of_fewer_blocks"
        ),
        pytest.param(STORED | {"mm_keys": [3]}, "bad_extra_keys", id="number_for_the_segments_of_a_block"),
        pytest.param(STORED | {"mm_keys": [[3]]}, "bad_extra_keys", id="number_for_a_segment"),
        pytest.param(
            STORED | {"mm_keys": [None], "extra_keys": [3]}, "bad_extra_keys", id="number_for_keys_of_a_block"
        ),
        pytest.param(STORED | {"block_size": [EMPTY] * 20_000}, "field_too_large", id="array_for_a_number"),
        pytest.param(STORED | {"type": {"a": [0] * 20_000}}, "field_too_large", id="map_for_a_tag"),
    ],
)
def test_more_than_any_engine_sends_is_refused(
    decode: Callable[[bytes], Batch], event: object, reason: str
) -> None:
    try:
        rejected = decode(msgspec.msgpack.encode([1.5, [event], 0])).rejected
    except WireError as error:
        rejected = (error.reason,)
    assert rejected == (reason,)


ENCODED = msgspec.msgpack.encode(STORED | {"token_ids": ["a"] * 20_000 + ["bb"]})


@pytest.mark.parametrize("decode", DECODERS, ids=["python", "native"])
@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b"\x82\xa1\xff\x01" + msgspec.msgpack.encode("type") + b"\x01", id="name_of_a_field"),
        pytest.param(ENCODED.replace(b"\xa2bb", b"\xa2b\xff"), id="text_in_a_long_field"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(decode: Callable[[bytes], Batch], event: bytes) -> None:
    assert decode(msgspec.msgpack.encode([1.5, [msgspec.Raw(event)], 0])).rejected == ("not_msgpack",)
