"""Prompts just sent to endpoints, as what the endpoints are about to hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client.metrics_core import Metric

from ..indexer.atlas import Atlas
from ..indexer.match import PrefixMatch
from ..indexer.predicted import PredictedPrefixes, Prediction, with_predicted
from ..indexer.prefix import Prefix
from ..scorers.core.model import Candidate
from .metrics import counter, gauge


class Predictions:
    """Predicted prefixes of the fleet, beside what its events tell.

    Args:
        atlas: what events tell.
        ttl_s: how long a prompt that was sent somewhere counts as held there, unless events tell sooner; None: never.
    """

    def __init__(self, atlas: Atlas, *, ttl_s: float | None) -> None:
        self._atlas, self.ttl_s = atlas, ttl_s
        self._predicted = PredictedPrefixes()

    def matches(self, prefix: Prefix | None, *, now: float) -> dict[str, PrefixMatch]:
        """What each endpoint holds of the prompt, or is about to; nothing without block keys."""
        if prefix is None:
            return {}
        matches = self._atlas.match(prefix)
        for size in self._predicted.block_sizes:
            predicted = self._predicted.match(prefix.keys(size), block_size=size, now=now)
            for endpoint, n_blocks in predicted.items():
                match = matches.get(endpoint)
                if match is not None and match.block_size == size:
                    matches[endpoint] = with_predicted(match, n_blocks, n_tokens=prefix.n_tokens)
        return matches

    def routed(self, picked: Candidate, prefix: Prefix | None, *, now: float) -> Prediction | None:
        """A prompt was sent to an endpoint. None where nothing is to be predicted.

        That is so where no block keys are known, where the endpoint holds the prompt already, and where it is known from
        routing alone, which says the same for good.
        """
        match = picked.prefix
        if self.ttl_s is None or prefix is None or match is None:
            return None
        told = match.held.tier_blocks[0] - match.predicted_blocks
        if told >= match.n_blocks or self._atlas.ledger(picked.name, match.rank).learns_from_routing:
            return None
        keys = prefix.keys(match.block_size)
        return self._predicted.add(picked.name, keys, block_size=match.block_size, now=now, ttl_s=self.ttl_s)

    def events_came(self, endpoint: str, rank: int) -> None:
        """Events of a rank are in the index: they replace what was predicted."""
        ledger = self._atlas.ledger(endpoint, rank)
        size, has = ledger.block_size, ledger.has
        self._predicted.confirm(endpoint, lambda each: each.block_size == size and has(each.last_key))

    def resized(self, endpoint: str, block_size: int) -> None:
        """Events have shown the endpoint's block size: what was predicted by another one is worth nothing."""
        self._predicted.resized(endpoint, block_size)

    def withdraw(self, prediction: Prediction) -> None:
        """The endpoint did not compute the prompt."""
        self._predicted.withdraw(prediction)

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone or began a new life."""
        self._predicted.forget(endpoint)

    def expire(self, *, now: float) -> None:
        """Free what does not count any more."""
        self._predicted.expire(now=now)

    def families(self) -> Iterator[Metric]:
        """Metrics of what was predicted."""
        ends = counter("predictions", "Predictions by what became of them.", "outcome")
        for outcome, count in asdict(self._predicted.counters).items():
            ends.add_metric([outcome], count)
        open_ = gauge("predictions_open", "Predictions that count.")
        open_.add_metric([], len(self._predicted))
        keys = gauge("predicted_keys", "Distinct block keys in predictions that count.")
        keys.add_metric([], self._predicted.n_keys)
        yield from (ends, open_, keys)
