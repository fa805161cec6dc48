"""Coverage-guided fuzzing of what reads engines' events: bytes -> `decode_batch` -> books -> index.

Use: make fuzz FUZZ_SECONDS=60, or fuzz_wire.py CORPUS_FOLDER [libFuzzer options]; a crash file as argument replays it.

Nothing but `WireError` may come out of `decode_batch`, nothing at all out of applying a batch. Each input goes to fresh
books with every index core there is, which must end with the same occupancy, and to books that live as long as the
process, with its hashes made new each time: those may not grow past the limits.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import msgspec

from support.recording import read_frames, read_lines


class Atheris(Protocol):
    """What is used of the fuzzer, which only `make fuzz` installs."""

    def instrument_imports(self, include: list[str]) -> AbstractContextManager[None]: ...
    def Setup(  # noqa: N802 - its names
        self,
        argv: list[str],
        target: Callable[[bytes], None],
        custom_mutator: Callable[[bytes, int, int], bytes],
    ) -> list[str]: ...
    def Fuzz(self) -> None: ...  # noqa: N802
    def Mutate(self, data: bytes, max_size: int) -> bytes: ...  # noqa: N802


atheris = cast("Atheris", import_module("atheris"))

with atheris.instrument_imports(include=["kvatlas.events", "kvatlas.indexer"]):
    from kvatlas.events.errors import WireError
    from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event
    from kvatlas.events.wire import decode_batch
    from kvatlas.indexer.atlas import Atlas
    from kvatlas.indexer.errors import IndexerError
    from kvatlas.indexer.factory import IndexCore, index_core
    from kvatlas.indexer.groups import MAX_GROUPS
    from kvatlas.indexer.hashmap import MAX_PARKED_BLOCKS
    from kvatlas.indexer.pending import MAX_PENDING_HASHES
    from kvatlas.indexer.tiers import MAX_UNKNOWN_TIERS, TierId, TierSpec, TierTable

GOLDEN = Path(__file__).parents[1] / "golden"
MAX_SEED_BYTES = 4096
ENDPOINT, RANK = "e", 0
CAPACITY = 2000
"""Blocks a tier of the long-lived books holds, so that their memory does not follow from what is cached."""

N_TIERS = 3
KNOWN_SLACK = 20_000
"""Learned hashes that may be kept beside three for each block held; more than the books' own slack."""

_U64 = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15


class Target:
    """What runs for each input."""

    def __init__(self) -> None:
        self._cores = cores()
        self._n_inputs = self._most_held = 0
        self._long_lived = make_atlas(self._cores[0])
        for tier in range(N_TIERS + MAX_UNKNOWN_TIERS):
            self._long_lived.set_capacity(ENDPOINT, TierId(tier), CAPACITY)

    def __call__(self, data: bytes) -> None:
        """Take one input."""
        outcomes = [outcome(core, bytes(data)) for core in self._cores]
        if any(each != outcomes[0] for each in outcomes):
            raise AssertionError(f"the cores do not agree: {outcomes}")
        try:
            events = decode_batch(bytes(data)).events
        except WireError:
            return
        self._n_inputs += 1
        spread = self._n_inputs * _SPREAD & _U64
        self._long_lived.apply(ENDPOINT, RANK, [renamed(event, spread) for event in events])
        self._most_held = max(self._most_held, held(self._long_lived))
        check_limits(self._long_lived, most_held=self._most_held)


def outcome(core: IndexCore, data: bytes) -> object:
    """Apply an input three times: later passes use the state of the earlier ones."""
    atlas = make_atlas(core)
    try:
        for _ in range(3):
            atlas.apply(ENDPOINT, RANK, core.decode_batch(data))
    except WireError as error:
        return error.reason
    check_limits(atlas, most_held=held(atlas))
    ledger = atlas.ledger(ENDPOINT, RANK)
    return atlas.occupancy(ENDPOINT), ledger.counters, ledger.hashes.table.columns()


def cores() -> list[IndexCore]:
    """Every core that was built."""
    try:
        return [index_core("native"), index_core("reference")]
    except IndexerError:
        return [index_core("reference")]


def make_atlas(core: IndexCore) -> Atlas:
    tiers = TierTable(
        [
            TierSpec("gpu", ("GPU",), capacity=CAPACITY),
            TierSpec("cpu", ("CPU",)),
            TierSpec("storage", ("STORAGE", "FS"), shared=True, capacity=CAPACITY),
        ]
    )
    atlas = Atlas(tiers=tiers, seed=0, core=core)
    atlas.add(ENDPOINT)
    return atlas


def renamed(event: Event, spread: int) -> Event:
    """Return the event with other hashes, replaced alike in all events of an input."""
    match event:
        case BlockStored(parent=parent):
            parent = None if parent is None else EngineHash(parent ^ spread)
            return replace(event, hashes=tuple(EngineHash(h ^ spread) for h in event.hashes), parent=parent)
        case BlockRemoved():
            return replace(event, hashes=tuple(EngineHash(h ^ spread) for h in event.hashes))
        case AllBlocksCleared():
            return event


def held(atlas: Atlas) -> int:
    ledger = atlas.ledger(ENDPOINT, RANK)
    return sum(ledger.residencies(TierId(tier)) for tier in range(len(atlas.tiers.specs)))


def check_limits(atlas: Atlas, *, most_held: int) -> None:
    ledger = atlas.ledger(ENDPOINT, RANK)
    sizes = {
        "pending hashes": (ledger.n_pending, MAX_PENDING_HASHES),
        "parked blocks": (ledger.hashes.n_parked, MAX_PARKED_BLOCKS),
        "known hashes": (len(ledger.hashes), 3 * most_held + KNOWN_SLACK),
        "groups": (len(ledger._groups), MAX_GROUPS),  # pyright: ignore[reportPrivateUsage]
        "tiers": (len(atlas.tiers.specs), N_TIERS + MAX_UNKNOWN_TIERS),
    }
    grown = {name: size for name, (size, limit) in sizes.items() if size > limit}
    if grown:
        raise AssertionError(f"past the limit: {grown}")


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Half the time a change of the decoded payload, so that what comes out is msgpack again; else any change of bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return atheris.Mutate(data, max_size)
    try:
        payload: object = msgspec.msgpack.decode(data)
        parts = list(containers(payload))
        for _ in range(rng.randint(1, 3) if parts else 0):
            change(rng.choice(parts), rng)
        changed = msgspec.msgpack.encode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, OverflowError):
        return atheris.Mutate(data, max_size)
    return changed if len(changed) <= max_size else atheris.Mutate(data, max_size)


Container = list[object] | dict[object, object]


def containers(value: object) -> list[Container]:
    """All lists and maps in the value, itself included."""
    found: list[Container] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            found.append(items := cast("list[object]", item))
            waiting += items
        elif isinstance(item, dict):
            found.append(fields := cast("dict[object, object]", item))
            waiting += fields.values()
    return found


def change(part: Container, rng: random.Random) -> None:
    """Replace, repeat or drop one element."""
    if not part:
        return
    places: list[object] = list(range(len(part))) if isinstance(part, list) else list(part)
    fields = cast("dict[object, object]", part)  # a list is edited alike, by index
    place = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del fields[place]
        case 1 if isinstance(part, list):
            part.append(fields[place])
        case 2:
            fields[place] = fields[rng.choice(places)]
        case _:
            fields[place] = scalar(rng)


def scalar(rng: random.Random) -> object:
    edge = 1 << rng.choice((1, 8, 16, 31, 32, 63))
    return rng.choice(
        (
            rng.getrandbits(64),
            edge - rng.randint(0, 2),
            edge,
            -edge,
            (1 << 64) - 1,
            rng.random(),
            float("nan"),
            None,
            rng.random() < 0.5,
            "",
            "x" * rng.choice((1, 256, 257)),
            rng.randbytes(rng.choice((0, 8, 32))),
            rng.choice(
                (
                    "GPU",
                    "CPU",
                    "FS",
                    "mamba",
                    "sliding_window",
                    "BlockStored",
                    "BlockRemoved",
                    "stored",
                    "removed",
                    "cleared",
                )
            ),
            [],
            {},
        )
    )


class Sample(msgspec.Struct, frozen=True):
    """One line of `legacy_samples.jsonl`."""

    engine: str
    variant: str
    payload_b64: bytes


class Made(msgspec.Struct, frozen=True):
    """One line of `other-publishers/samples.jsonl`."""

    name: str
    payload_b64: bytes


UNRECORDED: tuple[dict[str, object], ...] = (
    {
        "block_hashes": [1, 2],
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "extra_keys": [[["image", 1]], ["salt"]],
    },
    {"block_hashes": [3], "parent_block_hash": 2, "token_ids": [[5, 6], [6, 7]], "block_size": 2},
    {"block_hashes": [2], "token_ids": [], "block_size": 0, "medium": "CPU"},
    {"block_hashes": [9], "token_ids": [1, 2, 3, 4], "block_size": 4, "medium": "CPU"},
    {"block_hashes": [b"12345678"], "group_idx": 1, "kv_cache_spec_kind": "sliding_window"},
)
"""Stores of shapes that no recording has: multimodal items, pairs, chunk ends, chunks of other libraries, groups."""


def seeds() -> Iterator[tuple[str, bytes]]:
    """Name and payload of everything recorded, of this and of former engine versions, and of what is not recorded."""
    for recording in sorted((*GOLDEN.glob("*/*_zmq.jsonl"), *GOLDEN.glob("*/*/zmq.jsonl"))):
        for number, frame in enumerate(read_frames(recording)):
            yield f"{recording.parent.name}-{recording.stem}-{number}", frame.parts[2]
    stores = [{"type": "BlockStored", **fields} for fields in UNRECORDED]
    yield (
        "unrecorded",
        msgspec.msgpack.encode([1.0, [*stores, {"type": "BlockRemoved", "block_hashes": [2]}], 0]),
    )
    for number, made in enumerate(read_lines(GOLDEN / "other-publishers" / "samples.jsonl", Made)):
        yield f"{made.name}-{number}", made.payload_b64
    for samples in sorted(GOLDEN.glob("*/legacy_samples.jsonl")):
        for sample in read_lines(samples, Sample):
            yield f"{sample.engine}-{sample.variant}", sample.payload_b64


def write_seeds(folder: Path) -> None:
    """Payloads of moderate size, so that the fuzzer starts from what engines really send."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, payload in seeds():
        if len(payload) <= MAX_SEED_BYTES:
            (folder / name).write_bytes(payload)


def main() -> None:
    if len(sys.argv) > 1 and not Path(sys.argv[1]).is_file():
        write_seeds(Path(sys.argv[1]))
    atheris.Setup(sys.argv, Target(), custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
