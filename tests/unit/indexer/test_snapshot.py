"""The snapshot file: written files are read back, and all others are rejected with a reason."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvatlas.events.model import BlockStored, EngineHash, MediumName, MultimodalKey
from kvatlas.events.position import StreamPosition
from kvatlas.events.stream import PublisherStream
from kvatlas.events.wire import WireBatch, decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.chunks import TailColumns
from kvatlas.indexer.columns import HolderColumns
from kvatlas.indexer.errors import SnapshotError
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.foreign import ForeignColumns
from kvatlas.indexer.holders import Place, SavedShared
from kvatlas.indexer.pending import Claim, PendingColumns
from kvatlas.indexer.saved_hashes import ParkedStore
from kvatlas.indexer.snapshot import FORMAT, MAGIC, SavedFleet, SavedHead, read_snapshot
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.snapshots import MAX_AGE_S, encoded, load, make_head, saved, saved_endpoint

SPECS = (TierSpec("gpu", ("GPU",)), TierSpec("disk", ("STORAGE",), shared=True))
POSITION = StreamPosition(epoch=2, next_seq=7, stamps=array("d", [1.5, 2.5]), newest_stamp=2.5, lost=True)


def make_atlas(*specs: TierSpec, seed: int = 0) -> Atlas:
    atlas = Atlas(tiers=TierTable(specs or SPECS), seed=seed, core=REFERENCE)
    atlas.add("a")
    return atlas


def store(*hashes: int, medium: str = "GPU", parent: int | None = None) -> BlockStored:
    return BlockStored(
        hashes=tuple(map(EngineHash, hashes)),
        parent=None if parent is None else EngineHash(parent),
        tokens=array("I", range(4 * len(hashes))),
        block_size=4,
        medium=MediumName(medium),
        extra_keys=((MultimodalKey("x", -3), "salt"),) * len(hashes),
    )


def filled() -> Atlas:
    atlas = make_atlas()
    events = [
        store(1, 2, 3),
        store(1),
        store(9, parent=8),
        store(1, 2, medium="STORAGE"),
        store(1, medium="TAPE"),
    ]
    atlas.apply("a", 0, events)
    return atlas


def snapshot_of(atlas: Atlas) -> bytes:
    return saved(atlas, {"a": 1}, position=POSITION)


def with_checksum(data: bytes) -> bytes:
    """Return the file with a right checksum."""
    return data[:-8] + struct.pack("<Q", xxh3_64_intdigest(data[:-8]))


def read(data: bytes, *specs: TierSpec, head: SavedHead | None = None) -> object:
    return read_snapshot(data, head or make_head(make_atlas(*specs)), max_age_s=MAX_AGE_S)


def test_everything_is_read_as_it_was_written() -> None:
    first, second = filled(), make_atlas()
    snapshot = load(snapshot_of(first), second)
    (rank,) = snapshot.endpoints["a"].ranks
    assert (rank.position, rank.books) == (POSITION, first.dump("a", 0, now=0))
    assert snapshot.fleet == SavedFleet(media=(MediumName("TAPE"),), shared={"": first.dump_shared("")})
    assert second.occupancy("a") == first.occupancy("a")


def test_columns_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of the other byte order, bytes are swapped on writing and reading."""
    atlas = filled()
    data = snapshot_of(atlas)
    monkeypatch.setattr(sys, "byteorder", "big")
    swapped = snapshot_of(atlas)
    assert swapped != data
    assert len(swapped) == len(data)
    again = make_atlas()
    load(swapped, again)
    assert again.dump("a", 0, now=0) == atlas.dump("a", 0, now=0)


OTHER_TIERS = [
    pytest.param((TierSpec("hbm", ("GPU",)), SPECS[1]), "gpu (here hbm)", id="name"),
    pytest.param((TierSpec("gpu", ("GPU", "HBM")), SPECS[1]), "gpu (here gpu)", id="media"),
    pytest.param((SPECS[0], TierSpec("disk", ("STORAGE",))), "disk (here disk)", id="scope"),
    pytest.param(
        (SPECS[0], TierSpec("disk", ("STORAGE",), None, 4, None, True)), "disk (here disk)", id="chunk"
    ),
    pytest.param((SPECS[0],), "disk (here none)", id="fewer"),
    pytest.param((*SPECS, TierSpec("tape")), "none (here tape)", id="more"),
]


@pytest.mark.parametrize(("specs", "named"), OTHER_TIERS)
def test_snapshot_of_other_tiers_is_refused_with_their_names(specs: tuple[TierSpec, ...], named: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        read(snapshot_of(filled()), *specs)
    assert (refused.value.reason, named in str(refused.value)) == ("tiers", True)


def test_bound_of_a_tier_is_configuration_and_may_differ() -> None:
    second = make_atlas(TierSpec("gpu", ("GPU",), capacity=2), SPECS[1])
    load(snapshot_of(filled()), second)
    assert second.ledger("a", 0).residencies(TierId(0)) == 2


def changed(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at + len(piece) :]


GOOD = snapshot_of(filled())
REFUSALS = [
    pytest.param(b"", "truncated", "0 bytes", id="empty"),
    pytest.param(GOOD[:15], "truncated", "15 bytes", id="within_the_prefix"),
    pytest.param(GOOD[:22], "truncated", "within a frame", id="within_a_length"),
    pytest.param(GOOD[:-1], "truncated", "within a frame", id="last_byte"),
    pytest.param(GOOD[:200], "truncated", "within a frame", id="within_a_frame"),
    pytest.param(changed(GOOD, 12, b"\xff" * 8), "truncated", "within a frame", id="absurd_length"),
    pytest.param(b"PK\3\4" + GOOD[4:], "not_a_snapshot", "PK", id="another_file"),
    pytest.param(changed(GOOD, 8, b"\1"), "version", "format 1", id="other_version"),
    pytest.param(changed(GOOD, 60, b"\0"), "checksum", "checksum", id="changed_byte"),
    pytest.param(GOOD + GOOD[-8:], "truncated", "within a frame", id="longer"),
    pytest.param(with_checksum(changed(GOOD, 20, b"\xc1")), "damaged", "invalid value", id="not_msgpack"),
    pytest.param(with_checksum(GOOD[:12] + bytes(8) + GOOD[12:]), "damaged", "invalid value", id="empty_frame"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason", "said"), REFUSALS)
def test_broken_file_is_refused_with_its_reason(data: bytes, reason: str, said: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        read(data)
    assert refused.value.reason == reason
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("head", "reason", "said"),
    [
        pytest.param(make_head(make_atlas(), created=1000 + 901), "age", "901 s ago", id="too_old"),
        pytest.param(make_head(make_atlas(), created=1000 - 61), "age", "-61 s ago", id="from_the_future"),
        pytest.param(make_head(make_atlas(seed=5)), "seed", "hashSeed 0, which is 5", id="seed"),
        pytest.param(
            make_head(make_atlas(), models=["x"]), "models", "of model m, and model.names is x", id="model"
        ),
        pytest.param(make_head(make_atlas(), models=[]), "models", "model.names is none", id="no_model"),
    ],
)
def test_snapshot_of_another_time_or_configuration_is_refused(
    head: SavedHead, reason: str, said: str
) -> None:
    with pytest.raises(SnapshotError) as refused:
        read(GOOD, head=head)
    assert (refused.value.reason, said in str(refused.value)) == (reason, True)


@pytest.mark.parametrize("created", [1000 + 900, 1000 - 60])
def test_snapshot_is_read_up_to_the_last_second_of_its_age(created: float) -> None:
    assert read(GOOD, head=make_head(make_atlas(), created=created))


def fleet(*media: str, shared_tier: int | None = None) -> SavedFleet:
    rows = (
        () if shared_tier is None else (SavedShared(tier=TierId(shared_tier), block_size=4, keys=array("Q")),)
    )
    return SavedFleet(media=tuple(map(MediumName, media)), shared={"": rows})


def of_pieces(*, head: bool = True, n_endpoints: int = 1, end: SavedFleet) -> bytes:
    atlas = filled()
    data = encoded(make_head(atlas), [saved_endpoint(atlas, "a")] * n_endpoints, end)
    if head:
        return data
    (length,) = struct.unpack_from("<Q", data, 12)
    return with_checksum(data[:12] + data[20 + length :])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(of_pieces(head=False, end=fleet("TAPE")), "first frame", id="no_head"),
        pytest.param(
            with_checksum(struct.pack("<8sI", MAGIC, FORMAT) + bytes(8)), "invalid value", id="no_frame"
        ),
        pytest.param(of_pieces(n_endpoints=2, end=fleet("TAPE")), "twice", id="endpoint_twice"),
        pytest.param(of_pieces(end=fleet()), "tiers [0, 1, 2]", id="tier_without_medium"),
        pytest.param(of_pieces(end=fleet("TAPE", shared_tier=3)), "tiers [0, 1, 2, 3]", id="shared_tier"),
        pytest.param(of_pieces(end=fleet("TAPE", shared_tier=-1)), "tiers [-1, 0, 1, 2]", id="negative_tier"),
        pytest.param(of_pieces(end=fleet("GPU")), "1 media", id="medium_with_tier"),
        pytest.param(of_pieces(end=fleet("TAPE", "TAPE")), "2 media", id="medium_twice"),
        pytest.param(of_pieces(end=fleet(*"ABCDEFGHI")), "9 media", id="too_many_media"),
    ],
)
def test_contradictory_file_is_refused_though_its_checksum_is_right(data: bytes, said: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        read(data)
    assert (refused.value.reason, said in str(refused.value)) == ("damaged", True)


LONG, SHORT = array("Q", [1]), array("I", [1])


def parked(*, parent: int, block_size: int) -> dict[str, object]:
    tokens = array("I", [1] * block_size)
    store = ParkedStore(
        hashes=LONG, parent=parent, tokens=tokens, block_size=block_size, lora_name=None, extra_keys=None
    )
    return {"parked": (store,)}


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        pytest.param("chunks", {"sizes": {TierId(1): 2**32}}, "<= 4294967295", id="chunk_size"),
        pytest.param("hashes", parked(parent=-1, block_size=1), ">= 0", id="parent"),
        pytest.param("hashes", parked(parent=9, block_size=0), ">= 1", id="block_size"),
    ],
)
def test_number_that_no_ledger_can_hold_is_refused(part: str, changes: dict[str, object], said: str) -> None:
    replace, atlas = msgspec.structs.replace, filled()
    endpoint = saved_endpoint(atlas, "a")
    (rank,) = endpoint.ranks
    books = replace(rank.books, **{part: replace(getattr(rank.books, part), **changes)})
    ranks = (replace(rank, books=books),)
    data = encoded(make_head(atlas), [replace(endpoint, ranks=ranks)], fleet("TAPE"))
    with pytest.raises(SnapshotError, match=said) as refused:
        read(data)
    assert refused.value.reason == "damaged"


PLACE = Place(TierId(0), 0)
CLAIM = Claim(PLACE, tail=False)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: HolderColumns(keys=SHORT, copies=LONG), id="keys_of_32_bits"),
        pytest.param(lambda: HolderColumns(keys=LONG, copies=SHORT), id="copies_of_32_bits"),
        pytest.param(
            lambda: TailColumns(place=PLACE, hashes=LONG, copies=array("Q")), id="tails_of_other_length"
        ),
        pytest.param(
            lambda: TailColumns(place=PLACE, hashes=LONG, copies=array("Q", [0])), id="tail_without_copy"
        ),
        pytest.param(
            lambda: ForeignColumns(hashes=LONG, tiers=SHORT, sizes=array("I", [2]), keys=LONG),
            id="chunk_beyond_keys",
        ),
        pytest.param(
            lambda: ForeignColumns(hashes=LONG, tiers=SHORT, sizes=array("I", [0]), keys=array("Q")),
            id="empty_chunk",
        ),
        pytest.param(
            lambda: PendingColumns(hashes=LONG, claims=SHORT, copies=LONG, kinds=(CLAIM,)), id="unknown_claim"
        ),
        pytest.param(
            lambda: PendingColumns(
                hashes=LONG, claims=array("I", [0]), copies=array("Q", [0]), kinds=(CLAIM,)
            ),
            id="claim_without_copy",
        ),
        pytest.param(
            lambda: ParkedStore(
                hashes=LONG, parent=1, tokens=SHORT, block_size=4, lora_name=None, extra_keys=None
            ),
            id="parked_without_its_tokens",
        ),
        pytest.param(
            lambda: ParkedStore(
                hashes=array("Q"), parent=1, tokens=array("I"), block_size=4, lora_name=None, extra_keys=None
            ),
            id="parked_without_blocks",
        ),
        pytest.param(
            lambda: StreamPosition(next_seq=0, stamps=array("d", [1.0])), id="stamps_before_batch_0"
        ),
        pytest.param(lambda: StreamPosition(next_seq=5, stamps=array("f", [1.0])), id="stamps_of_32_bits"),
        pytest.param(
            lambda: StreamPosition(next_seq=9999, stamps=array("d", bytes(8 * 1025))), id="many_stamps"
        ),
        pytest.param(
            lambda: msgspec.structs.replace(filled().dump("a", 0, now=0), block_size=None), id="no_block_size"
        ),
    ],
)
def test_columns_that_fit_no_books_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        make()


HASH = st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1])
COUNT = st.sampled_from([0, 1, 2**31 - 1])
EXTRA = (
    st.text(max_size=3)
    | st.binary(max_size=3)
    | st.tuples(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1))
)


@st.composite
def any_store(draw: st.DrawFn) -> dict[str, object]:
    hashes = draw(st.lists(HASH, max_size=3))
    size = draw(st.sampled_from([0, 1, 1, 2]))
    extras = st.lists(st.none() | st.lists(EXTRA, max_size=2), min_size=len(hashes), max_size=len(hashes))
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": draw(st.none() | HASH),
        "token_ids": draw(st.lists(st.sampled_from([0, 2**32 - 1]), min_size=1, max_size=1))
        * (size * len(hashes)),
        "block_size": size,
        "medium": draw(st.none() | st.sampled_from(["GPU", "STORAGE"]) | st.text(max_size=3)),
        "lora_name": draw(st.none() | st.text(max_size=3)),
        "extra_keys": draw(st.none() | extras),
        "group_idx": draw(st.none() | COUNT),
        "kv_cache_spec_kind": draw(st.none() | st.sampled_from(["sliding_window", "full_attention", "\0"])),
        "kv_cache_spec_sliding_window": draw(st.none() | COUNT),
    }


@given(
    events=st.lists(any_store(), max_size=8), seq=st.sampled_from([0, 5, 2**64 - 2]), ts=st.floats(0, 1e308)
)
def test_whatever_a_publisher_says_can_be_written_and_read(
    events: list[dict[str, object]], seq: int, ts: float
) -> None:
    first, second = make_atlas(), make_atlas()
    batch = decode_batch(msgspec.msgpack.encode([ts, events]))
    stream = PublisherStream[WireBatch](can_replay=False)
    stream.live(seq, batch, ts=ts)
    first.apply("a", 0, batch.events)
    snapshot = load(saved(first, {"a": 1}, position=stream.position()), second)
    assert snapshot.endpoints["a"].ranks[0].position == stream.position()
    assert second.dump("a", 0, now=0) == first.dump("a", 0, now=0)
    assert second.dump_shared("") == first.dump_shared("")


@given(at=st.integers(0, len(GOOD) - 1), bit=st.integers(0, 7))
def test_flipped_bit_is_always_refused(at: int, bit: int) -> None:
    with pytest.raises(SnapshotError):
        read(changed(GOOD, at, bytes([GOOD[at] ^ 1 << bit])))


@given(n_bytes=st.integers(0, len(GOOD) - 1))
def test_shortened_file_is_always_refused(n_bytes: int) -> None:
    with pytest.raises(SnapshotError):
        read(GOOD[:n_bytes])


@given(at=st.integers(0, len(GOOD)), piece=st.binary(min_size=1, max_size=40))
def test_inserted_bytes_are_always_refused(at: int, piece: bytes) -> None:
    with pytest.raises(SnapshotError):
        read(GOOD[:at] + piece + GOOD[at:])


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        read(data)


@given(at=st.integers(12, len(GOOD) - 9), piece=st.binary(min_size=1, max_size=9))
def test_forged_file_is_refused_or_loads_and_never_crashes(at: int, piece: bytes) -> None:
    """A changed file with a right checksum loads as it is or is rejected; later events never fail."""
    atlas = make_atlas()
    try:
        load(with_checksum(changed(GOOD, at, piece)[: len(GOOD)]), atlas)
    except SnapshotError:
        return
    atlas.apply("a", 0, [store(1, 2, 3), store(8), store(2, medium="TAPE")])
    atlas.match(atlas.prefix(array("I", range(16))))
