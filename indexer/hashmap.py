"""Engine hash -> block key, for one publisher: learned from events that carry tokens, kept while it may be needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from ..events.model import BlockStored, EngineHash, MultimodalKey
from .keys import BlockKey, PrefixKeys, root_key

MAX_PARKED_BLOCKS = 65_536
"""Blocks of events whose parent is not known that are kept per publisher, about 300 full 8k-token prefills."""

MAX_PARKED_TOKENS = 4_194_304
"""Tokens of those events, 16 MiB: block sizes differ, memory does not."""

_SWEEP_SLACK = 16_384
"""Hashes without residency that are kept: their slower-tier events may still be on the way."""


class Known(NamedTuple):
    """One learned block: its key, its number in its prompt from 0, and the hash before it."""

    key: BlockKey
    depth: int
    parent: EngineHash | None


class HashMap:
    """What one publisher's engine hashes mean.

    An event whose parent is unknown is parked and learned when the parent is: order does not matter.

    Args:
        seed: seed of the block keys.
        make_keys: makes them.
    """

    def __init__(self, *, seed: int, make_keys: PrefixKeys) -> None:
        self.n_parked = 0
        self.n_dropped = 0
        self._parked_tokens = 0
        self._sweep_at = 0
        self._seed, self._make_keys = seed, make_keys
        self._known: dict[EngineHash, Known] = {}
        self._parked: OrderedDict[EngineHash, list[BlockStored]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, engine_hash: EngineHash) -> Known | None:
        """What the hash means, None when it was not told (yet)."""
        return self._known.get(engine_hash)

    def learn(self, event: BlockStored) -> list[EngineHash]:
        """Take in a store event with dense tokens; returns every hash that became known, adopted children's too.

        Cost: O(blocks learned).
        """
        learned: list[EngineHash] = []
        waiting = [event]
        while waiting:
            event = waiting.pop()
            parent = None if event.parent is None else self._known.get(event.parent)
            if event.parent is not None and parent is None:
                self._park(event.parent, event)
                continue
            fresh = self._learn_one(event, parent)
            learned += fresh
            for engine_hash in fresh:
                if self._parked:
                    children = self._parked.pop(engine_hash, [])
                    self._unparked(children)
                    waiting += children
        return learned

    def chain(self, engine_hash: EngineHash) -> Iterator[Known]:
        """The block, the one before it, and so on, as far as known."""
        known = self._known.get(engine_hash)
        while known is not None:
            yield known
            known = None if known.parent is None else self._known.get(known.parent)

    def sweep(self, *, n_resident: int, is_held: Callable[[BlockKey], bool]) -> None:
        """Forget hashes of blocks that no tier has, once they outnumber the resident ones. Amortised O(1) a learned hash.

        Args:
            n_resident: residencies of the publisher.
            is_held: whether any tier of the publisher has a key.
        """
        surplus = len(self._known) - _SWEEP_SLACK
        if surplus > 2 * n_resident and len(self._known) >= self._sweep_at:
            old = islice(self._known.items(), surplus)
            for engine_hash in [h for h, known in old if not is_held(known.key)]:
                del self._known[engine_hash]
            self._sweep_at = len(self._known) * 3 // 2  # one that finds little is not repeated at once

    def clear(self) -> None:
        """Forget everything: the publisher began a new life."""
        self._known.clear()
        self._parked.clear()
        self.n_parked = self._parked_tokens = self._sweep_at = 0

    def _learn_one(self, event: BlockStored, parent: Known | None) -> list[EngineHash]:
        if event.hashes[-1] in self._known and all(h in self._known for h in event.hashes):
            return []
        root = parent.key if parent else _root(event, self._seed)
        keys = self._make_keys(
            event.tokens, event.block_size, seed=self._seed, parent=root, extras=_extras(event)
        )
        depth = parent.depth + 1 if parent else 0
        before, fresh = event.parent, list[EngineHash]()
        for number, (engine_hash, key) in enumerate(zip(event.hashes, keys, strict=True)):
            if engine_hash not in self._known:
                self._known[engine_hash] = Known(BlockKey(key), depth + number, before)
                fresh.append(engine_hash)
            before = engine_hash
        return fresh

    def _park(self, parent: EngineHash, event: BlockStored) -> None:
        self._parked.setdefault(parent, []).append(event)
        self.n_parked += len(event.hashes)
        self._parked_tokens += len(event.tokens)
        while self.n_parked > MAX_PARKED_BLOCKS or self._parked_tokens > MAX_PARKED_TOKENS:
            _, events = self._parked.popitem(last=False)
            self.n_dropped += self._unparked(events)

    def _unparked(self, events: list[BlockStored]) -> int:
        """Take `events` out of the counts; returns their blocks."""
        n_blocks = sum(len(event.hashes) for event in events)
        self.n_parked -= n_blocks
        self._parked_tokens -= sum(len(event.tokens) for event in events)
        return n_blocks


def _own_names(event: BlockStored) -> list[str]:
    """Plain extra keys of the first block beside the adapter's name: cache salt, digests of prompt embeddings."""
    first = (event.extra_keys[0] if event.extra_keys else None) or ()
    return [extra for extra in first if isinstance(extra, str) and extra != event.lora_name]


def _root(event: BlockStored, seed: int) -> BlockKey | None:
    return root_key(lora=event.lora_name, salt="\0".join(_own_names(event)), seed=seed)


def _extras(event: BlockStored) -> dict[int, list[MultimodalKey]]:
    extras: dict[int, list[MultimodalKey]] = {}
    for block, items in enumerate(event.extra_keys or ()):
        for item in items or ():
            if isinstance(item, MultimodalKey):
                extras.setdefault(block, []).append(item)
            elif item != event.lora_name and (block or event.parent is not None):
                extras.setdefault(block, []).append(MultimodalKey(item, 0))
    return extras
