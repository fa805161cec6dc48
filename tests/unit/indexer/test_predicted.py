"""Predicted prefixes beside a plain list of predictions, and their effect on a match."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvatlas.indexer.keys import prefix_keys
from kvatlas.indexer.match import PrefixMatch, PresenceRun, RankLayout, measure
from kvatlas.indexer.match_columns import MatchColumns
from kvatlas.indexer.predicted import PredictedPrefixes, Prediction, PredictionCounters
from support.candidates import BLOCK_SIZE, match_of

TTL_S = 10.0
SIZES = (1, 2)
TEXTS = st.text("ab", min_size=2, max_size=9)
NAMES = st.sampled_from("xyz")
TTLS = st.sampled_from([TTL_S, TTL_S, TTL_S / 2])
ALL = ["".join(text) for text in ("a" * 9, "b" * 9, "ab" * 4, "ba" * 4, "aab" * 3, "abb" * 3, "aaaabbbb")]


def keys_of(text: str, size: int) -> array[int]:
    return prefix_keys(array("I", list(text.encode())), size, seed=0)


def common(one: array[int], other: array[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass
class Known:
    """A prediction in the model."""

    endpoint: str
    keys: array[int]
    size: int
    expires_at: float


class Predicting(RuleBasedStateMachine):
    """Added, dropped, confirmed and expired predictions and new lives, beside a model that checks each."""

    entries: Bundle[Prediction] = Bundle("entries")

    @initialize(max_keys=st.sampled_from([12, 1000]), max_predictions=st.sampled_from([3, 1000]))
    def begin(self, max_keys: int, max_predictions: int) -> None:
        self.predicted = PredictedPrefixes(max_keys=max_keys, max_predictions=max_predictions)
        self.is_bounded = min(max_keys, max_predictions) < 1000
        self.bounds = (max_keys, max_predictions)
        self.now = 0.0
        self.model: dict[Prediction, Known] = {}
        self.counts = PredictionCounters()

    @rule(target=entries, endpoint=NAMES, text=TEXTS, size=st.sampled_from(SIZES), ttl_s=TTLS)
    def add(self, endpoint: str, text: str, size: int, ttl_s: float) -> Prediction:
        keys = keys_of(text, size)
        entry = self.predicted.add(endpoint, keys, block_size=size, now=self.now, ttl_s=ttl_s)
        self.model[entry] = Known(endpoint, keys, size, self.now + ttl_s)
        if self.is_bounded:  # what had to go went in the order in which it would have expired
            by_expiry = sorted(self.model, key=lambda each: each.expires_at)
            gone = [each.node is None for each in by_expiry]
            assert gone == sorted(gone, reverse=True)
        self.counts.displaced += sum(each.node is None for each in self.model)
        self.model = {each: known for each, known in self.model.items() if each.node is not None}
        return entry

    @rule(entry=entries)
    def withdraw(self, entry: Prediction) -> None:
        self.predicted.withdraw(entry)
        self.counts.withdrawn += self.model.pop(entry, None) is not None

    @rule(entry=consumes(entries))
    def withdraw_for_good(self, entry: Prediction) -> None:
        self.withdraw(entry)

    @rule(endpoint=NAMES, texts=st.lists(TEXTS, max_size=3))
    def events_come(self, endpoint: str, texts: list[str]) -> None:
        held = {key for text in texts for size in SIZES for key in keys_of(text, size)}
        self.predicted.confirm(endpoint, lambda each: each.last_key in held)
        self.counts.confirmed += self.end(lambda known: known.endpoint == endpoint and known.keys[-1] in held)

    @rule(endpoint=NAMES)
    def new_life(self, endpoint: str) -> None:
        self.predicted.forget(endpoint)
        self.counts.forgotten += self.end(lambda known: known.endpoint == endpoint)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, TTL_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.predicted.expire(now=self.now)
        self.counts.expired += self.end(lambda known: known.expires_at <= self.now)

    def end(self, has_ended: Callable[[Known], bool]) -> int:
        """Remove predictions from the model; return their number."""
        ended = [each for each, known in self.model.items() if has_ended(known)]
        for each in ended:
            del self.model[each]
        return len(ended)

    @invariant()
    def every_prediction_ended_as_counted(self) -> None:
        assert self.predicted.counters == self.counts

    @invariant()
    def matches_are_the_longest_common_beginnings(self) -> None:
        for size in SIZES:
            for text in ALL:
                keys = keys_of(text, size)
                wanted: dict[str, int] = {}
                for known in self.model.values():
                    n_blocks = common(known.keys, keys) if known.size == size else 0
                    if n_blocks:
                        wanted[known.endpoint] = max(n_blocks, wanted.get(known.endpoint, 0))
                assert self.predicted.match(keys, block_size=size, now=self.now) == wanted

    @invariant()
    def nothing_is_left_of_what_does_not_count(self) -> None:
        assert len(self.predicted) == len(self.model)
        assert set(self.predicted.keyings) == {(known.size, 0) for known in self.model.values()}
        keys = {(known.size, key) for known in self.model.values() for key in known.keys}
        assert self.predicted.n_keys == len(keys)
        assert self.predicted.n_keys <= self.bounds[0]
        assert len(self.predicted) <= self.bounds[1]


TestPredicting = Predicting.TestCase


def test_expired_predictions_do_not_match_before_anything_else_is_done() -> None:
    predicted = PredictedPrefixes()
    keys = keys_of("abab", 1)
    predicted.add("x", keys, block_size=1, now=0.0, ttl_s=TTL_S)

    before, after = (predicted.match(keys, block_size=1, now=now) for now in (TTL_S - 1, TTL_S))

    assert (before, after, len(predicted)) == ({"x": 4}, {}, 0)


def test_prediction_outlives_its_lifetime_while_the_request_waits() -> None:
    predicted = PredictedPrefixes()
    keys = keys_of("abab", 1)
    entry = predicted.add("x", keys, block_size=1, now=0.0, ttl_s=2.0, wait_s=60.0)
    assert predicted.match(keys, block_size=1, now=30.0) == {"x": 4}
    entry.begun()
    assert predicted.match(keys, block_size=1, now=31.9) == {"x": 4}
    assert predicted.match(keys, block_size=1, now=32.0) == {}
    assert predicted.counters.expired == 1


def test_prediction_with_a_lifetime_below_the_resolution_of_the_clock_is_renewed_once() -> None:
    predicted = PredictedPrefixes()
    keys = keys_of("abab", 1)
    entry = predicted.add("x", keys, block_size=1, now=1e7, ttl_s=1e-12, wait_s=60.0)
    assert predicted.match(keys, block_size=1, now=1e7 + 1) == {"x": 4}
    entry.begun()
    assert predicted.match(keys, block_size=1, now=1e7 + 2) == {}


def test_prediction_expires_when_the_longest_wait_is_over() -> None:
    predicted = PredictedPrefixes()
    keys = keys_of("abab", 1)
    predicted.add("x", keys, block_size=1, now=0.0, ttl_s=2.0, wait_s=60.0)
    assert predicted.match(keys, block_size=1, now=59.0) == {"x": 4}
    assert predicted.match(keys, block_size=1, now=61.0) == {}


def test_prompt_longer_than_all_bounds_predicts_nothing() -> None:
    predicted = PredictedPrefixes(max_keys=3)

    entry = predicted.add("x", keys_of("abab", 1), block_size=1, now=0.0, ttl_s=TTL_S)

    assert (entry.node, len(predicted), predicted.n_keys) == (None, 0, 0)


def with_predicted(match: PrefixMatch, n_blocks: int, *, n_tokens: int) -> PrefixMatch:
    """Predict in the middle one of three rows, of which the others stay as they are."""
    held = match.held
    column = (
        *held.tier_blocks, *held.union_blocks, held.usable_blocks, match.rank, 0, match.n_blocks, match.block_size
    )  # fmt: skip
    columns = MatchColumns(
        match.tiers,
        np.array([column] * 3, np.int32).T.copy(),
        None,
        None,
        dict.fromkeys(range(3), held.interleaved) if held.interleaved else {},
        {},
    )
    columns.predict([(1, n_blocks)], block_size=match.block_size, n_tokens=n_tokens)
    first, changed, last = columns.matches([0, 1, 2])
    assert first == match == last
    return changed


@given(
    masks=st.tuples(*[st.integers(0, 2**12 - 1)] * 3),
    n_blocks=st.integers(0, 12),
    predicted=st.integers(0, 12),
)
def test_match_is_that_of_an_endpoint_that_holds_what_is_predicted(
    masks: tuple[int, int, int], n_blocks: int, predicted: int
) -> None:
    predicted = min(predicted, n_blocks)
    gpu, cpu, storage = (mask & (1 << n_blocks) - 1 for mask in masks)
    end = next((block for block in range(n_blocks) if not (gpu | cpu | storage) >> block & 1), n_blocks)
    if predicted > end:  # what is behind the gap does not count
        gpu, cpu, storage = (mask & (1 << end) - 1 for mask in (gpu, cpu, storage))
    before = match_of(gpu, cpu, storage, n_blocks=n_blocks)
    n_tokens = n_blocks * BLOCK_SIZE + 1
    wanted = match_of(gpu | (1 << predicted) - 1, cpu, storage, n_blocks=n_blocks)

    after = with_predicted(before, predicted, n_tokens=n_tokens)

    assert after.predicted_blocks == after.held.tier_blocks[0] - before.held.tier_blocks[0]
    if predicted <= before.held.tier_blocks[0]:
        assert after == before
        return
    assert after.held.tier_blocks == wanted.held.tier_blocks
    assert (after.runs, after.held.union_blocks) == (wanted.runs, wanted.held.union_blocks)
    assert after.usable_blocks == max(before.usable_blocks, after.held.tier_blocks[0])


@pytest.mark.parametrize(
    ("n_tokens", "usable"), [pytest.param(64, 3, id="last_token"), pytest.param(65, 4, id="whole")]
)
def test_predicted_blocks_are_usable_but_for_the_last_token(n_tokens: int, usable: int) -> None:
    presence = [PresenceRun(1, 1), PresenceRun(4, 0)]
    held = measure(presence, RankLayout((1,), (1,)), n_tokens=n_tokens, block_size=16)
    match = msgspec.structs.replace(match_of(1, n_blocks=4), tiers=("gpu",), held=held)

    after = with_predicted(match, 4, n_tokens=n_tokens)

    assert (match.usable_blocks, after.usable_blocks, after.predicted_blocks) == (1, usable, 3)
