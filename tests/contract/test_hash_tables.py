"""The native table of engine hashes holds the same rows as the dict, whatever follows what."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.events.model import EngineHash
from kvatlas.indexer.hash_table import DictTable, HashTable, Known
from kvatlas.indexer.keys import BlockKey

_native = pytest.importorskip("kvatlas.indexer._native")
native_ledger = pytest.importorskip("kvatlas.indexer.native_ledger")

HASH = st.integers(1, 40).map(EngineHash) | st.integers(1, 5000).map(EngineHash)
DEPTH = st.integers(0, 3) | st.just(2**32 - 1)


class Tables(RuleBasedStateMachine):
    """A dict and the native table under the same calls."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = DictTable()
        self.table: HashTable = native_ledger.NativeTable(_native.Ledger(7))

    @rule(
        first=HASH, n_rows=st.integers(1, 5) | st.sampled_from([1023, 1024, 1500]), depth=DEPTH, parent=HASH
    )
    def put_prompt(self, first: EngineHash, n_rows: int, depth: int, parent: EngineHash) -> None:
        for number in range(min(n_rows, 2**32 - depth)):
            self.put(EngineHash(first + number), depth + number, parent)
            parent = EngineHash(first + number)

    @rule(engine_hash=HASH, depth=DEPTH, parent=HASH)
    def put(self, engine_hash: EngineHash, depth: int, parent: EngineHash) -> None:
        known = Known(BlockKey(engine_hash ^ depth), depth, parent if depth else None)
        self.expected.put(engine_hash, known)
        self.table.put(engine_hash, known)

    @rule(n_rows=st.integers(1, 3) | st.just(600))
    def renew_oldest(self, n_rows: int) -> None:
        for _ in range(min(n_rows, len(self.expected))):
            engine_hash, known = self.expected.pop_oldest()
            assert self.table.pop_oldest() == (engine_hash, known)
            self.expected.put(engine_hash, known)
            self.table.put(engine_hash, known)

    @rule(n_rows=st.integers(1, 3) | st.just(1100))
    def pop_oldest(self, n_rows: int) -> None:
        for _ in range(min(n_rows, len(self.expected))):
            assert self.table.pop_oldest() == self.expected.pop_oldest()

    @rule(engine_hash=HASH)
    def look_up(self, engine_hash: EngineHash) -> None:
        assert self.table.get(engine_hash) == self.expected.get(engine_hash)
        assert self.table.chain(engine_hash, 20) == self.expected.chain(engine_hash, 20)

    @rule()
    def copy(self) -> None:
        columns = self.table.columns()
        self.table.clear()
        self.table.put_columns(columns)

    @invariant()
    def agree(self) -> None:
        assert self.table.columns() == self.expected.columns()


Tables.TestCase.settings = settings(stateful_step_count=20)
TestTables = Tables.TestCase
