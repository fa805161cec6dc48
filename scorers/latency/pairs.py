"""Expected time to first token of pairs: one endpoint computes the prompt, and another receives its KV state and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from .expected import Expected
from .features import Typical
from .groups import FitReport
from .lines import N_AHEAD, WORK
from .links import Link, Links
from .pair_arithmetic import STEP, TRANSFER, WAIT, Computing, PairNumbers, Receiving
from .pair_operations import pair_times
from .params import LatencyCostParams
from .ttft import TtftCosts

PRIORS = {"transfer": 1.0, "wait": 1.0, "step": 1.5}
"""Their priors. A step: the first token waits for the end of the step that is running, and needs one of its own."""

SETTLE_S = 0.2
"""Age at which a request is part of what its endpoint reports: the sidecar sends it, and the engine tokenizes it. When a prompt is
computed for another cannot be seen: its first token comes from there. So it is expected, and an endpoint that reports no request is done."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How KV state gets from one endpoint to another, before anything is learned.

    Attributes:
        ms_per_token: milliseconds per token.
        latency_ms: milliseconds of each transfer beside that.
        only_missing: whether blocks that the receiver has on its GPU are left out.
        label: label that names the end of a link.
    """

    ms_per_token: float
    latency_ms: float
    only_missing: bool
    label: str


class PairTimes(NamedTuple):
    """What is expected of one request on each pair; p endpoints compute, d receive.

    Attributes:
        features: of those that compute, shape (features, p).
        costs: milliseconds per unit of each, paces included; shape (features, p) or (features, 1).
        pace: paces of those that compute, shape (p) or a number.
        tail: costs of transfer, wait and step, shape (3, p) or (3, 1).
        prefill_ms: milliseconds until the prompt is computed, shape (p).
        tokens: tokens to transfer, shape (d).
        transfer_ms: milliseconds of the transfer, shape (p, d).
        wait_ms: milliseconds for which the receiver or the sender is not ready, after the prompt is computed; shape (p, d).
        step_ms: milliseconds per output token of the receiver, shape (d).
        ttft_ms: milliseconds to first token, shape (p, d).
    """

    features: FloatArray
    costs: FloatArray
    pace: FloatArray | float
    tail: FloatArray
    prefill_ms: FloatArray
    tokens: FloatArray
    transfer_ms: FloatArray
    wait_ms: FloatArray
    step_ms: FloatArray
    ttft_ms: FloatArray

    def pace_of(self, row: int) -> float:
        """Return the pace of one endpoint that computes."""
        return float(self.pace[row]) if isinstance(self.pace, np.ndarray) else self.pace

    def tail_ms(self, row: int, column: int) -> tuple[float, float, float]:
        """Return the milliseconds of transfer, wait and step of one pair, at their costs."""
        costs = self.tail[:, row if self.tail.shape[1] > 1 else 0].tolist()
        return (
            costs[TRANSFER] * float(self.transfer_ms[row, column]),
            costs[WAIT] * float(self.wait_ms[row, column]),
            costs[STEP] * float(self.step_ms[column]),
        )

    def all_features(self, row: int, column: int) -> list[float]:
        """Return the features of one pair, those of the endpoint that computes as of one with the pace 1."""
        return [
            *(self.features[:, row] * self.pace_of(row)).tolist(),
            float(self.transfer_ms[row, column]),
            float(self.wait_ms[row, column]),
            float(self.step_ms[column]),
        ]


class PairCosts:
    """Model of the times of pairs: the costs of a prompt on endpoints that compute it for others, and of what follows.

    `time = prompt on the one + transfer + wait + step on the other`, one regression on observed times. The receiver is not
    ready before the tokens ahead of it there are computed and its blocks are free, and the sender not before its earlier
    transfers are done, nor those that the receiver gets from others at that time; all of this goes on while the prompt is computed.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
        transfer: initial speed of transfers.

    Attributes:
        ttft: costs of the whole time.
        links: speeds of transfers by pair of labels, relative to which the cost of `transfer` is.
    """

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str], transfer: Transfer) -> None:
        self.ttft = TtftCosts(params, tiers, more=PRIORS)
        self.links = Links(transfer.ms_per_token, most=params.max_factor)
        self._transfer = transfer

    def follow(self, candidates: Candidates) -> None:
        """Note which groups and links have endpoints, from those of the whole fleet's directory."""
        self.ttft.fits.follow(candidates)
        self.links.follow(candidates.labelled(self._transfer.label).values)

    def times(
        self,
        request: RequestView,
        computing: Candidates,
        accounts: FloatArray,
        receiving: Expected,
        tpot_ms: FloatArray,
        *,
        pace: FloatArray | float,
        typical: Typical,
    ) -> PairTimes:
        """Return what is expected of each pair.

        Args:
            request: the request.
            computing: the endpoints that compute prompts for others.
            accounts: of these, see `Accounts.columns`.
            receiving: what is expected of those that receive, if they computed the prompt themselves.
            tpot_ms: milliseconds per output token of those that receive.
            pace: factors of the endpoints that compute.
            typical: see `features`.
        Cost: O(computing * receiving), and some 30 operations on columns.
        """
        of_others = accounts.copy()
        of_others[WORK] = of_others[N_AHEAD] = 0.0
        features, costs, _ = self.ttft.quantities(request, computing, of_others, pace=pace, typical=typical)
        tail = self.ttft.fits.costs(computing)[self.ttft.n_features :]
        tokens = self._missing(request, receiving.candidates)
        label = self._transfer.label
        speeds = self.links.between(computing.labelled(label), receiving.candidates.labelled(label))
        n = len(computing)
        prefill_ms, times_ms = np.empty(n), np.empty((3, n, len(tokens)))
        pair_times(
            Computing(features, costs, accounts, computing.state, tail),
            Receiving(receiving.features, receiving.costs, receiving.accounts, tokens, tpot_ms),
            speeds,
            PairNumbers(request.now, self._transfer.latency_ms, SETTLE_S),
            prefill_ms,
            times_ms,
        )
        transfer_ms, wait_ms, ttft_ms = times_ms
        return PairTimes(
            features, costs, pace, tail, prefill_ms, tokens, transfer_ms, wait_ms, tpot_ms, ttft_ms
        )

    def link(self, computing: Candidates, row: int, receiving: Candidates, column: int) -> Link:
        """Return the link of one pair."""
        label = self._transfer.label
        return computing[row].labels.get(label), receiving[column].labels.get(label)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return self.ttft.reports()

    def _missing(self, request: RequestView, receiving: Candidates) -> FloatArray:
        """Return the tokens that an endpoint has to receive."""
        prefix = receiving.prefix
        if prefix is None or not self._transfer.only_missing:
            return np.full(len(receiving), float(request.n_tokens))
        held = prefix.tier_blocks[0] * prefix.block_size * receiving.credit
        missing: FloatArray = np.maximum(0.0, request.n_tokens - held)
        return missing
