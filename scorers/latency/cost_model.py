"""Cost model: what a request costs on each endpoint in milliseconds, learned from the requests that were routed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.shared import SharedSums
from .accounts import Accounts, OpenRequest
from .features import MEMORY, QUEUE, Typical, new_tokens
from .fit import MAX_MILLISECONDS
from .groups import FitReport
from .lengths import OutputLengths
from .lines import LOG_PACE, N_LINES
from .params import LatencyCostParams
from .tpot import TOKEN_MS, TpotCosts
from .ttft import TtftCosts, total

MAX_PACE = 8.0
"""Largest factor between the times of an endpoint and those of its group, in both directions."""

MEAN_STEP = 0.01
"""Step of the running means of prompts and of times per output token, per observation."""

NOTHING_OWN: FloatArray = np.zeros((N_LINES, 1))
NOTHING_OWN.flags.writeable = False


class Expected(NamedTuple):
    """What is expected of one request on each candidate.

    Attributes:
        request: the request.
        candidates: the endpoints.
        accounts: see `Accounts.columns`.
        features: of the time to first token, shape (d, n).
        costs: milliseconds per unit of each, the pace of the endpoints included; shape (d, n) or (d, 1).
        ttft_ms: expected milliseconds to first token, by endpoint.
    """

    request: RequestView
    candidates: Candidates
    accounts: FloatArray
    features: FloatArray
    costs: FloatArray
    ttft_ms: FloatArray

    @property
    def terms_ms(self) -> FloatArray:
        """Milliseconds of each feature, in the order of `CostModel.terms`; shape (d, n)."""
        return self.costs * self.features


class CostModel:
    """Model of the times to first token and per output token of each endpoint.

    An endpoint that is slower or faster than the others of its group gets a pace of its own: a factor of all its times. It is
    learned only if endpoints are not grouped by a label, which says it already.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.

    Attributes:
        ttft: costs of the time to first token.
        tpot: costs of the time per output token.
        lengths: expected output lengths.
        accounts: what is under way on each endpoint.
        work_tokens: running mean of the tokens that an endpoint computes for a request.
    """

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self._learns, self._has_paces = params.fit, params.fit and not params.group_label
        self.ttft, self.tpot = TtftCosts(params, tiers), TpotCosts(params.group_label)
        self.lengths = OutputLengths()
        self.accounts = Accounts()
        self._last: Expected | None = None
        """What was expected of the latest request: it is the one that is picked next."""
        self._new_tokens = self.work_tokens = 0.0
        self._tpot_ms = TOKEN_MS

    @property
    def terms(self) -> tuple[str, ...]:
        """Return the names of the terms of `Expected.terms_ms`."""
        return self.ttft.fits.names

    def shared_sums(self) -> Mapping[str, SharedSums]:
        """See `SharesSums`."""
        return {
            "accounts": self.accounts.shared,
            "ttft": self.ttft.fits.shared,
            "tpot": self.tpot.fits.shared,
        }

    def expect(self, request: RequestView, candidates: Candidates) -> Expected:
        """Return what is expected of a request. Cost: some 30 operations on columns."""
        accounts = self.accounts.columns(candidates)
        expected = self._last = self._expected(request, candidates, accounts)
        return expected

    def tpot_ms(self, expected: Expected) -> FloatArray:
        """Return the expected milliseconds per output token by endpoint."""
        features = self.tpot.features(expected.features, expected.accounts, now=expected.request.now)
        costs = self.tpot.fits.costs(expected.candidates) * self.pace(expected.accounts)
        return total(features, costs)

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was sent to an endpoint, which computes its prompt unless another stage does."""
        found, row = self._last, None
        if found is not None and found.request is request:
            row = found.candidates.row(decision.picked[0])
        if found is None or row is None:
            found, row = self._expected_of(decision), 0
        else:
            found = _one(found, row)
        self._last = None
        quantities: list[float] = found.features[:, 0].tolist()
        if not all(map(math.isfinite, quantities)):
            return
        group, computes = self.ttft.fits.group_of(decision.best), decision.computing is decision
        tokens, busy_ms = self.ttft.work(group, quantities) if computes else (0.0, 0.0)
        tpot = self.tpot.features(found.features, found.accounts, now=request.now)
        pace = math.exp(float(found.accounts[LOG_PACE, 0]))
        n_new = float(round(new_tokens(found.features)[0]))
        opened = OpenRequest(
            decision,
            self.accounts.row(decision.picked[0]),
            group,
            quantities,
            expected_ms=float(found.ttft_ms[0]),
            work=tokens,
            tokens=float((decision.best.uncached_tokens(request) if computes else 0) + request.output_tokens),
            n_new=n_new,
            tpot_features=tpot[:, 0].tolist(),
            computes=computes,
        )
        costs = self.tpot.fits.costs_of(group)
        opened.expected_tpot_ms = pace * sum(map(float.__mul__, costs, opened.tpot_features))
        self._new_tokens += MEAN_STEP * (n_new - self._new_tokens)
        if computes:
            self.note_work(tokens)
        self.accounts.open(opened, busy_ms=busy_ms * pace, now=request.now)

    def note_work(self, n_tokens: float) -> None:
        """Learn the typical work of a request from that of one."""
        self.work_tokens += MEAN_STEP * (n_tokens - self.work_tokens)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from the time to first token of a streamed response, if the endpoint computed the prompt itself."""
        request = self.accounts.find(decision) or self._unseen(decision)
        ms = ttft_s * 1000.0
        if not 0.0 < ms <= MAX_MILLISECONDS:
            return
        self.accounts.begun(request, now=decision.at + ttft_s)
        if not self._learns or decision.computing is not decision:
            return
        pace = self.accounts.pace(request.row) if self._has_paces else 1.0
        if self._has_paces and not request.features[QUEUE] and not request.features[MEMORY]:
            # a wait would say more of the load than of the speed
            error = math.log(ms / request.expected_ms)
            pace = self.accounts.learn_pace(request.row, error, slowest=MAX_PACE)
        self.ttft.fits.observe(
            request.group, request.features, ms, expected_ms=request.expected_ms, pace=pace
        )

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Learn from the length of a response."""
        origin = decision.origin
        self.lengths.add(decision.model, origin.fairness_id if origin is not None else "", n_tokens)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Forget a request, and learn from its time per output token; None if that is not known."""
        request = self.accounts.ended(decision)
        ms = tpot_s * 1000.0 if tpot_s is not None else math.nan
        if not self._learns or not 0.0 < ms <= MAX_MILLISECONDS:
            return
        request = request or self._unseen(decision)
        self._tpot_ms += MEAN_STEP * (ms - self._tpot_ms)
        self.tpot.fits.observe(
            request.group,
            request.tpot_features,
            ms,
            expected_ms=request.expected_tpot_ms,
            pace=self.accounts.pace(request.row) if self._has_paces else 1.0,
        )

    def prediction(self, decision: Decision) -> tuple[float, float] | None:
        """Return the milliseconds to first token and per output token that were expected at a pick; None after its end."""
        request = self.accounts.find(decision)
        return None if request is None else (request.expected_ms, request.expected_tpot_ms)

    def reports(self) -> list[FitReport]:
        """Return the costs of the time to first token of each group seen so far, in order of appearance."""
        return self.ttft.reports()

    def pace(self, accounts: FloatArray) -> FloatArray | float:
        """Return the factors of the times of endpoints, whose accounts these are."""
        return np.exp(accounts[LOG_PACE]) if self._has_paces else 1.0

    def _expected(self, request: RequestView, candidates: Candidates, accounts: FloatArray) -> Expected:
        features, costs = self.ttft.quantities(
            request,
            candidates,
            accounts,
            pace=self.pace(accounts),
            typical=Typical(
                self._new_tokens, self.work_tokens, self.lengths.mean(request.model) * self._tpot_ms
            ),
        )
        return Expected(request, candidates, accounts, features, costs, total(features, costs))

    def expect_new(self, request: RequestView, candidates: Candidates) -> Expected:
        """Return what is expected of a request on endpoints without own requests."""
        return self._expected(request, candidates, NOTHING_OWN)

    def _expected_of(self, decision: Decision) -> Expected:
        """Return what is expected on the picked endpoint of a decision by the state that it saw alone."""
        view = RequestView(model=decision.model, now=decision.at, n_tokens=decision.n_tokens)
        return self.expect_new(view, Candidates.of([decision.best]))

    def _unseen(self, decision: Decision) -> OpenRequest:
        """Return a request whose pick was not seen, such as of another policy, which belongs to no account."""
        found = self._expected_of(decision)
        tpot = self.tpot.features(found.features, found.accounts, now=decision.at)
        return OpenRequest(
            decision,
            row=-1,
            group=self.ttft.fits.group_of(decision.best),
            features=found.features[:, 0].tolist(),
            expected_ms=float(found.ttft_ms[0]),
            work=0.0,
            tokens=0.0,
            n_new=0.0,
            tpot_features=tpot[:, 0].tolist(),
        )


def _one(expected: Expected, row: int) -> Expected:
    """Return what is expected on one endpoint; the table of candidates stays."""
    place = slice(row, row + 1)
    return expected._replace(
        accounts=expected.accounts[:, place],
        features=expected.features[:, place],
        ttft_ms=expected.ttft_ms[place],
    )
