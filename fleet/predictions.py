"""Predicted prefixes: blocks that an endpoint will soon hold because a prompt was just sent to it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import asdict
from typing import Protocol

from prometheus_client.metrics_core import Metric

from ..indexer.atlas import Atlas
from ..indexer.figures import BLOCK_SIZE, RANK, USABLE
from ..indexer.ledger import RankLedger
from ..indexer.match import PrefixMatch, usable_when_computed
from ..indexer.match_columns import MatchColumns
from ..indexer.predicted import PredictedPrefixes, Prediction
from ..indexer.prefix import Prefix
from ..scorers.core.candidates import Directory
from ..scorers.core.model import Candidate
from .families import counter, gauge

MAX_WAIT_S = 600.0
"""Longest wait in an engine's queue for which a prompt counts as predicted, if nobody tells how its request ended. Without it a
conversation whose last prompt still waits looks homeless, and is computed on one more endpoint just when all are busy."""


class PredictionListener(Protocol):
    """Takes what becomes of this process's own predictions, for its siblings."""

    def routed(
        self, endpoint: str, prefix: Prefix, match: PrefixMatch, prediction: Prediction | None
    ) -> None:
        """Handle a prompt that was sent to an endpoint, and its prediction; None if nothing is predicted."""
        ...

    def begun(self, prediction: Prediction) -> None:
        """Handle the begin of a response; a prediction of somebody else is ignored."""
        ...

    def withdrawn(self, prediction: Prediction) -> None:
        """Handle a prediction that was withdrawn; one of somebody else is ignored."""
        ...


class Predictions:
    """Predicted prefixes of the fleet, added to what the index knows from events.

    Args:
        atlas: the index.
        ttl_s: lifetime of a prediction that no event confirms, from the begin of the response; None switches predictions off.
    """

    def __init__(self, atlas: Atlas, *, ttl_s: float | None) -> None:
        self._atlas, self.ttl_s = atlas, ttl_s
        self._predicted = PredictedPrefixes()
        self.listener: PredictionListener | None = None
        """None if no process shares what is predicted."""

    @property
    def n_open(self) -> int:
        """Open predictions, those of other processes included."""
        return len(self._predicted)

    def matches(self, prefix: Prefix | None, directory: Directory, *, now: float) -> MatchColumns | None:
        """Return what each endpoint holds of the prompt, predictions included.

        Args:
            prefix: block keys of the prompt, None if they are unknown.
            directory: all endpoints, by row.
            now: monotonic seconds.
        Returns:
            None without block keys, or if no endpoint's block size is known.
        """
        if prefix is None:
            return None
        matches = self._atlas.columns(prefix, directory.names)
        for size, lookahead in self._predicted.keyings:
            keys = prefix.keys(size, lookahead)
            predicted = self._predicted.match(keys, block_size=size, now=now, lookahead=lookahead)
            if matches is None or not predicted:
                continue
            wanted = [
                (row, n_blocks)
                for name, n_blocks in predicted.items()
                if (row := directory.row(name)) is not None
            ]
            others: list[tuple[int, int]] = []
            if matches.drops or prefix.n_tokens % size == 0:
                for row, n_blocks in wanted:
                    usable = self._usable(matches, directory.names[row], row, n_blocks, prefix.n_tokens)
                    others += [(row, usable)] if usable is not None else []
            matches.predict(wanted, block_size=size, n_tokens=prefix.n_tokens)
            for row, usable in others:
                matches.reuse(row, usable)
        return matches

    def _usable(self, matches: MatchColumns, name: str, row: int, n_blocks: int, n_tokens: int) -> int | None:
        """Return the usable blocks of an endpoint with predicted ones, None if they are all but the prompt's last.

        Engines with a drafter compute one more again, and those with a slower tier that gets copies reuse the last one too.
        """
        ledger, size = (
            self._atlas.ledger(name, int(matches.line(RANK)[row])),
            int(matches.line(BLOCK_SIZE)[row]),
        )
        layout, copies = ledger.layout(), n_blocks * size == n_tokens and ledger.copies_blocks
        if layout is None or not (layout.dropped or copies) or n_blocks <= matches.figures[0, row]:
            return None
        then = usable_when_computed(n_blocks, layout, n_tokens=n_tokens, block_size=size, copies=copies)
        return max(int(matches.line(USABLE)[row]), then)

    def routed(self, picked: Candidate, prefix: Prefix | None, *, now: float) -> Prediction | None:
        """Predict what the picked endpoint will hold of the prompt.

        Returns:
            None if there is nothing to predict: without block keys, if the endpoint holds the prompt already, or if the
            rank learns from routing, which records the same without expiry. With several ranks a dropped prediction then,
            since the prompt's last block shows which of them ran the request.
        """
        match = picked.prefix
        if prefix is None or match is None:
            return None
        prediction = self._predict(picked.name, prefix, match, now=now)
        if self.listener is not None:
            lives = prediction is not None and prediction.node is not None
            self.listener.routed(picked.name, prefix, match, prediction if lives else None)
        return prediction

    def _predict(self, endpoint: str, prefix: Prefix, match: PrefixMatch, *, now: float) -> Prediction | None:
        n_held = match.held.tier_blocks[0] - match.predicted_blocks
        ledger = self._atlas.ledger(endpoint, match.rank)
        size, lookahead = match.block_size, ledger.lookahead
        if self.ttl_s is None or n_held >= match.n_blocks or ledger.learns_from_routing:
            if len(self._atlas.ledgers(endpoint)) == 1 or not (keys := prefix.keys(size, lookahead)):
                return None
            return Prediction.dropped(endpoint, size, lookahead, keys[-1])
        return self._predicted.add(
            endpoint,
            prefix.keys(size, lookahead),
            block_size=size,
            now=now,
            ttl_s=self.ttl_s,
            lookahead=lookahead,
            wait_s=MAX_WAIT_S,
        )

    def foreign(
        self,
        endpoint: str,
        keys: array[int],
        *,
        block_size: int,
        lookahead: int,
        now: float,
        ttl_s: float,
        wait_s: float,
    ) -> Prediction | None:
        """Predict what an endpoint will hold of a prompt that another process sent there; None if predictions are off.

        The arguments are those of `PredictedPrefixes.add`.
        """
        if self.ttl_s is None:
            return None
        return self._predicted.add(
            endpoint, keys, block_size=block_size, now=now, ttl_s=ttl_s, lookahead=lookahead, wait_s=wait_s
        )

    def begun(self, prediction: Prediction) -> None:
        """Note that the response began: the blocks are computed, so their events must come within the lifetime."""
        prediction.begun()
        if self.listener is not None:
            self.listener.begun(prediction)

    def confirm(self, endpoint: str, ledger: RankLedger) -> None:
        """End the predictions that a rank's events have made true; call it after a batch was applied."""
        if not self._predicted.has(endpoint):
            return
        size, has = ledger.block_size, ledger.has
        self._predicted.confirm(endpoint, lambda each: each.block_size == size and has(each.last_key))

    def resized(self, endpoint: str, block_size: int) -> None:
        """Drop predictions of other block sizes, because events have shown the endpoint's block size."""
        self._predicted.resized(endpoint, block_size)

    def withdraw(self, prediction: Prediction) -> None:
        """Drop a prediction, because the endpoint did not compute the prompt."""
        self._predicted.withdraw(prediction)
        if self.listener is not None:
            self.listener.withdrawn(prediction)

    def forget(self, endpoint: str) -> None:
        """Drop the predictions of an endpoint that was removed or restarted."""
        self._predicted.forget(endpoint)

    def expire(self, *, now: float) -> None:
        """Drop predictions whose lifetime is over."""
        self._predicted.expire(now=now)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of predictions."""
        ends = counter("predictions", "Predictions by outcome.", "outcome")
        for outcome, count in asdict(self._predicted.counters).items():
            ends.add_metric([outcome], count)
        open_ = gauge("predictions_open", "Open predictions.")
        open_.add_metric([], self.n_open)
        keys = gauge("predicted_keys", "Distinct block keys in open predictions.")
        keys.add_metric([], self._predicted.n_keys)
        yield from (ends, open_, keys)
