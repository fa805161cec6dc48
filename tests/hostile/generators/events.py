"""Event messages whose application may cost far more than their bytes, made by a grammar of events.

A message is a few motifs, each repeated with small variations. Motifs build on each other within one publisher's life:
chains of blocks, then what names their ends; events that wait, then what they wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

KINDS = ("full_attention", "sliding_window", "mamba", "odd", None)
MEDIA = ("GPU", "gpu", "CPU", "CPU_PINNED", "FS", "DISK", "NVME", None)
BLOCK = 4
MAX_EVENTS = 3000
"""Events per message, so that a few hundred messages are tried in seconds."""

Event = dict[str, Any] | list[Any]


def inputs(rng: Random) -> Iterator[bytes]:
    """Yield payloads without end."""
    world = World(rng)
    while True:
        events: list[object] = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            motif = rng.choice(MOTIFS)
            events += motif(world, rng.choice((1, 10, 100, MAX_EVENTS // 3)))
        batch: object = [rng.random() * 1e9, events, rng.choice((0, 0, 0, None, 1))]
        if rng.random() < 0.1:
            batch = {"ts": 1.0, "events": events}
        payload = msgspec.msgpack.encode(batch)
        if rng.random() < 0.05:
            at = rng.randrange(len(payload))
            payload = payload[:at] + bytes([rng.randrange(256)]) + payload[at + 1 :]
        yield payload


class World:
    """What earlier messages have said: chains of blocks and hashes in use."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.next_hash = 1
        self.chains: list[list[int]] = []
        self.orphans: list[int] = []

    def fresh(self, n: int) -> list[int]:
        """Return hashes that were not used, sometimes of a kind that collides in simple hash tables."""
        first, self.next_hash = self.next_hash, self.next_hash + n
        stride = self.rng.choice((1, 1, 1 << 20, 1 << 40, 1_000_003, 2**61 - 1))
        return [(first + number) * stride % 2**64 for number in range(n)]

    def known(self, n: int) -> list[int]:
        """Return hashes of one chain."""
        chain = self.rng.choice(self.chains) if self.chains else self.fresh(4)
        return [self.rng.choice(chain) for _ in range(n)]

    def stored(self, hashes: list[int], parent: int | None, **more: object) -> Event:
        """Return a store event with tokens."""
        base = self.rng.randrange(1 << 30)
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": [base + number for number in range(BLOCK * len(hashes))],
            "block_size": BLOCK,
            "medium": "GPU",
            **more,
        }

    def place(self) -> dict[str, object]:
        """Return a medium, and sometimes a group with a cache kind."""
        fields: dict[str, object] = {"medium": self.rng.choice(MEDIA)}
        if self.rng.random() < 0.3:
            fields["group_idx"] = self.rng.randrange(70)
            fields["kv_cache_spec_kind"] = self.rng.choice(KINDS)
        return fields


def chain(world: World, n: int) -> list[Event]:
    """A prompt of many blocks."""
    hashes = world.fresh(20 * n)
    world.chains.append(hashes)
    return [
        world.stored(hashes[at : at + 500], hashes[at - 1] if at else None)
        for at in range(0, len(hashes), 500)
    ]


def tails(world: World, n: int) -> list[Event]:
    """Chunks named by their last block alone."""
    hashes = world.known(1)
    ends = hashes * n if world.rng.random() < 0.5 else world.known(n)
    return [
        {"type": "BlockStored", "block_hashes": [end], "token_ids": [], "block_size": 0, "medium": "CPU"}
        for end in ends
    ]


def many_tails(world: World, n: int) -> list[Event]:
    """Many chunks in one event."""
    return [["BlockStored", world.known(10 * n), None, [], 0, None, world.rng.choice(("CPU", "FS"))]]


def waiting(world: World, n: int) -> list[Event]:
    """Copies of unknown hashes, at many places."""
    hashes = world.fresh(world.rng.choice((1, n)))
    world.orphans += hashes
    names = [world.rng.choice(hashes) for _ in range(n)]
    return [["BlockStored", [name], None, [], 0, None, *_row(world.place())] for name in names]


def orphans(world: World, n: int) -> list[Event]:
    """Blocks of which the one before is unknown; sometimes of one and the same."""
    parents = world.fresh(1) * n if world.rng.random() < 0.5 else world.fresh(n)
    world.orphans += parents[:1]
    return [world.stored(world.fresh(1), parent) for parent in parents]


def adopted(world: World, n: int) -> list[Event]:
    """What orphans and waiting copies wait for."""
    hashes, world.orphans = world.orphans[:n], world.orphans[n:]
    return [world.stored([each], None) for each in hashes]


def removals(world: World, n: int) -> list[Event]:
    """Removals of known, unknown and waiting hashes."""
    pools = (world.known(n), world.fresh(n), world.orphans[:n] or world.fresh(1))
    return [["BlockRemoved", world.rng.choice(pools), *_row(world.place())[:1]] for _ in range(3)]


def removed_one_by_one(world: World, n: int) -> list[Event]:
    """Removals of one hash each, with a medium each."""
    return [["BlockRemoved", [name], f"M{number}"] for number, name in enumerate(world.known(n))]


def clears(world: World, n: int) -> list[Event]:
    """Resets of the prefix cache, each after one copy that waits."""
    one: list[Event] = [["BlockStored", world.fresh(1), None, [], 0, None, "GPU"], ["AllBlocksCleared"]]
    return one * n


def media(world: World, n: int) -> list[Event]:
    """A medium each."""
    return [world.stored([name], None, medium=f"m{world.rng.random()}") for name in world.known(n)]


def windows(world: World, n: int) -> list[Event]:
    """A cache kind, group or window each."""
    kind = world.rng.choice(KINDS)
    return [
        world.stored(
            world.fresh(1), None, group_idx=number % 80, kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=number,
        )
        for number in range(n)
    ]  # fmt: skip


def adapters(world: World, n: int) -> list[Event]:
    """An adapter each."""
    return [world.stored(world.fresh(1), None, lora_name=f"{world.rng.random()}" * 9) for _ in range(n)]


def lora_ids(world: World, n: int) -> list[Event]:
    """An adapter's number each, which the usual decoder leaves to the slow one."""
    return [world.stored(world.fresh(1), None, lora_id=number) for number in range(n)]


def foreign(world: World, n: int) -> list[Event]:
    """Chunks of a cache library with hashes of its own."""
    size = BLOCK * world.rng.choice((2, 16, 256))
    tokens = [world.rng.randrange(1 << 16)] * (size * max(1, n // 50))
    hashes = world.fresh(len(tokens) // size)
    return [["BlockStored", hashes, None, tokens, size, None, "CPU"]]


def extras(world: World, n: int) -> list[Event]:
    """Blocks with many other inputs of their hashes."""
    keys = [["image", number] for number in range(n // 10 + 1)]
    return [world.stored(world.fresh(2), None, extra_keys=[["salt"] * n, keys])]


def pairs(world: World, n: int) -> list[Event]:
    """Tokens as pairs, as engines with speculative decoding send them."""
    tokens = [[1, 2] for _ in range(BLOCK * n)]
    return [["BlockStored", world.fresh(n), None, tokens, BLOCK]]


def lookaheads(world: World, n: int) -> list[Event]:
    """Blocks whose hashes cover the tokens after them; some of another prompt, or too many."""
    length, hashes = world.rng.choice((1, 1, 2, 100)), world.fresh(n)
    tokens = [world.rng.randrange(9)] * (BLOCK * n)
    rows = [tokens[:1] * length for _ in hashes]
    if world.rng.random() < 0.2:
        rows[0] = [7] * length
    return [world.stored(hashes, None, token_ids=tokens, lookahead_token_ids=rows)]


def salts(world: World, n: int) -> list[Event]:
    """Prompts with a salt beside their extra keys, and fields that only people read."""
    odd: tuple[object, ...] = ("a", "a", "\0", "", None, 3, "s" * 300)
    more: dict[str, object] = {"locality": "REMOTE", "ownership": "kvcr", "session_id": world.rng.choice(odd)}
    return [
        world.stored(
            world.fresh(2),
            None,
            lora_name=world.rng.choice((None, "l")),
            **more,
            cache_salt=world.rng.choice(odd),
        )
        for _ in range(n)
    ]


def reports(world: World, n: int) -> list[Event]:
    """What is held, told again, and sometimes continued."""
    hashes = world.fresh(n + 3)
    held = world.stored(hashes, None, token_ids=[5] * (BLOCK * len(hashes)))
    after = world.stored(world.fresh(1), hashes[-1])
    return [held, after] if world.rng.random() < 0.5 else [held, held, after]


def unknown(world: World, n: int) -> list[Event]:
    """Events of kinds that nobody knows."""
    tags: tuple[object, ...] = ("BlockMoved", "", 7, b"x", "Ä", [], None)
    return [[world.rng.choice(tags), *world.known(2)] for _ in range(n)]


def rubbish(world: World, n: int) -> list[Event]:
    """Values that are no events, and nesting."""
    deep: Any = []
    for _ in range(min(n, 200)):
        deep = [deep]
    odd: list[Any] = [[], {}, None, 1, "text", b"\xc1", deep, [[]] * n]
    return [world.rng.choice(odd) for _ in range(n)]


def wrapped(world: World, n: int) -> list[Any]:
    """Events as bytes within the message."""
    return [msgspec.msgpack.encode(event) for event in chain(world, n // 10 + 1)]


def repeated(world: World, n: int) -> list[Event]:
    """One hash many times in one event."""
    name = world.known(1)
    return [["BlockRemoved", name * n], world.stored(name * n, None), ["BlockRemoved", name * n, "CPU"]]


def _row(place: dict[str, object]) -> list[object]:
    return [place["medium"], None, None, place.get("group_idx"), place.get("kv_cache_spec_kind")]


MOTIFS: tuple[Callable[[World, int], list[Any]], ...] = (
    chain, tails, many_tails, waiting, orphans, adopted, removals, removed_one_by_one, clears, media, windows, adapters,
    lora_ids, foreign, extras, pairs, unknown, rubbish, wrapped, repeated, lookaheads, salts, reports,
)  # fmt: skip
