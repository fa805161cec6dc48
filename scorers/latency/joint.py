"""Joint cost model: what a request costs on each endpoint alone, and on each pair, learned from the requests that were routed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from .cost_model import NOTHING_OWN, CostModel
from .expected import Expected
from .features import Typical
from .fit import MAX_MILLISECONDS
from .lines import MEMORY, QUEUE
from .links import Link
from .open_request import OpenRequest
from .pairs import PairCosts, PairTimes, Transfer
from .params import LatencyCostParams
from .rate import Rate, SharedRates
from .transfers import Delays

MOST_WAIT = 0.25
"""Largest part of an expected time that may be a wait if its costs are to be learned from."""


class Weighed(NamedTuple):
    """What is expected of one request on each endpoint that decodes, alone and in pairs.

    Attributes:
        request: the request.
        alone: of each endpoint that decodes, if it computes the prompt too.
        tpot_ms: milliseconds per output token of these.
        prefill: endpoints that compute prompts for others.
        pairs: of each pair, None if there is none to compare with.
    """

    request: RequestView
    alone: Expected
    tpot_ms: FloatArray
    prefill: Candidates
    pairs: PairTimes | None


class _OpenPair(OpenRequest, gc=False):
    """The part of a request at the endpoint that computes its prompt for another.

    Attributes:
        link: to the other.
        prefill_ms: expected time until the prompt is computed.
        sending_ms: expected time of the transfer.
        delays: by the transfer, for others at its two endpoints.
        transfer_ms: the part of it that depends on the speed of the link, at that speed, and the wait for earlier transfers.
        is_clean: whether nearly all of the expected time is work on this request: waits say more of the load than of costs, and
            what is not foreseen of them would be taken for costs.
    """

    link: Link = (None, None)
    prefill_ms: float = 0.0
    sending_ms: float = 0.0
    delays: Delays = Delays()
    transfer_ms: float = 0.0
    is_clean: bool = True


class JointModel:
    """Model of the times of requests that one endpoint serves, and of those that a pair serves.

    Both kinds have a regression of their own, since endpoints that compute for others do nothing else, so that the same
    quantities may cost something else there. Endpoints have one account for both kinds.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
        transfer: initial speed of transfers.

    Attributes:
        alone: model of endpoints that serve requests alone, and of the times per output token of all.
        pairs: costs of pairs.
        answered_per_ms: requests per millisecond of all processes; all of them go to endpoints that decode.
        computed_per_ms: those of which endpoints that prefill compute the prompt.
        rates: shares both with other processes.
    """

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str], transfer: Transfer) -> None:
        self._learns, self._has_paces = params.fit, params.fit and not params.group_label
        self.alone = CostModel(params, tiers)
        self.alone.accounts.plans_prompts = True
        self.pairs = PairCosts(params, tiers, transfer)
        self.answered_per_ms, self.computed_per_ms = Rate(), Rate()
        self.rates = SharedRates({"answered": self.answered_per_ms, "computed": self.computed_per_ms})
        self._last: Weighed | None = None
        """What was expected of the latest request: it is the one that is picked next."""

    def weigh(self, request: RequestView, decode: Candidates, prefill: Candidates) -> Weighed:
        """Return what is expected of a request on each endpoint and pair.

        Args:
            request: the request.
            decode: endpoints that can answer it.
            prefill: endpoints that can compute its prompt for others; none if pairs are not to be compared.
        """
        self.pairs.follow(decode)
        alone = self.alone.expect(request, decode)
        accounts = self.alone.accounts.columns(prefill) if len(prefill) else NOTHING_OWN
        weighed = self._last = self._weighed(alone, prefill, accounts)
        return weighed

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was sent to an endpoint, and the part of it that another one does."""
        found, self._last = self._last, None
        self.alone.picked(request, decision)
        if request.n_tokens:
            self.rates.add("answered", request.now)
        computing = decision.computing
        if computing is decision:
            return
        self.rates.add("computed", request.now)
        row = column = None
        if found is not None and found.request is request and found.pairs is not None:
            row = found.prefill.row(computing.picked[0])
            column = found.alone.candidates.row(decision.picked[0])
        if found is None or row is None or column is None:
            found, row, column = self._weighed_of(decision), 0, 0
        opened = self._opened(found, row, column, decision)
        if opened is not None:
            opened.row = self.alone.accounts.row(computing.picked[0])
            opened.work *= request.extent
            opened.tokens = float(computing.best.computed_tokens(request))
            opened.due_at = self.alone.due_at(request, opened.expected_ms, busy_ms=opened.busy_ms)
            opened.lessons = (("work", opened.work),)
            accounts = self.alone.accounts
            accounts.open(opened, busy_ms=opened.busy_ms * request.extent, now=request.now)
            receiver, transfer_ms = accounts.row(decision.picked[0]), opened.sending_ms * request.extent
            opened.delays = accounts.sent(opened, receiver, transfer_ms=transfer_ms)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from the time to first token of a streamed response."""
        self.alone.answered(decision, ttft_s=ttft_s)
        computing, ms = decision.computing, ttft_s * 1000.0
        if computing is decision or not 0.0 < ms <= MAX_MILLISECONDS:
            return
        accounts = self.alone.accounts
        pair = accounts.find(computing)
        if pair is None:
            pair = self._opened(self._weighed_of(decision), 0, 0, decision)
        else:
            self.alone.teach(pair)
            accounts.ended(computing)
        if self._learns and isinstance(pair, _OpenPair) and decision.n_prompts == 1:
            self._learn(pair, ms)

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Learn from the length of a response."""
        self.alone.generated(decision, n_tokens=n_tokens)

    def refused(self, decision: Decision) -> None:
        """Take back what was counted of a request when it was sent, since its prompt was not computed."""
        self.alone.refused(decision)
        if decision.n_tokens:
            self.rates.take_back("answered", decision.at)
        if decision.computing is not decision:
            self.alone.refused(decision.computing)
            self.rates.take_back("computed", decision.at)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Forget a request, and learn from its time per output token; None if that is not known."""
        self.alone.ended(decision, tpot_s=tpot_s)
        if decision.computing is decision:
            return
        accounts = self.alone.accounts
        pair = accounts.find(decision.computing)
        self.alone.ended(decision.computing, tpot_s=None)
        if not isinstance(pair, _OpenPair) or pair.has_begun:
            return
        if pair.is_refused or self.alone.shows_beginnings:  # without a first token it was not sent
            accounts.unsent(pair.row, accounts.row(decision.picked[0]), pair.delays)

    def _learn(self, pair: _OpenPair, ms: float) -> None:
        if not pair.is_clean or not pair.is_foreseen:
            return
        if self._has_paces and not pair.features[QUEUE]:
            # of an error the endpoint that computes gets the share that its part has in the whole
            error = math.log(ms / pair.expected_ms) * pair.prefill_ms / pair.expected_ms
            self.alone.accounts.learn_pace(pair.row, error)
        self.pairs.links.learn(
            pair.link, transfer_ms=pair.transfer_ms, observed_ms=ms, expected_ms=pair.expected_ms
        )
        self.pairs.ttft.fits.observe(pair.group, pair.features, ms, expected_ms=pair.expected_ms, pace=1.0)

    def _weighed(self, alone: Expected, prefill: Candidates, accounts: FloatArray) -> Weighed:
        request = alone.request
        tpot_ms = self.alone.tpot_ms(alone)
        pairs = None
        if len(prefill):
            # their blocks are free when a prompt is computed, so that the tokens ahead say all of the wait
            typical = Typical(
                self.alone.work_tokens, self.alone.work_tokens, residence_ms=0.0, output_tokens=0.0
            )
            pairs = self.pairs.times(
                request,
                prefill,
                accounts,
                alone,
                tpot_ms,
                pace=self.alone.pace(accounts),
                typical=typical,
            )
        return Weighed(request, alone, tpot_ms, prefill, pairs)

    def _weighed_of(self, decision: Decision) -> Weighed:
        """Return what is expected of the pair of a decision by the state that it saw alone."""
        both = Candidates.of([decision.best, decision.computing.best])
        view = RequestView(model=decision.model, now=decision.at, n_tokens=decision.n_tokens)
        alone = self.alone.expect_new(view, both.take(np.array([0])))
        return self._weighed(alone, both.take(np.array([1])), NOTHING_OWN)

    def _opened(self, found: Weighed, row: int, column: int, decision: Decision) -> _OpenPair | None:
        """Return the part of the endpoint that computes, without a row; None if its quantities are not finite."""
        pairs, computing = found.pairs, decision.computing
        if pairs is None:
            return None
        features = pairs.all_features(row, column)
        if not all(map(math.isfinite, features)):
            return None
        group = self.pairs.ttft.fits.group_of(computing.best)
        work, busy_ms = self.pairs.ttft.work(group, pairs.features[:, row].tolist())
        link = self.pairs.link(found.prefill, row, found.alone.candidates, column)
        sending_ms, _, _ = pairs.tail_ms(row, column)
        return _OpenPair(
            computing,
            row=-1,
            group=group,
            features=features,
            expected_ms=float(pairs.ttft_ms[row, column]),
            work=work,
            tokens=float(computing.best.uncached_tokens(found.request)),
            n_held=float(found.request.n_tokens),
            link=link,
            busy_ms=busy_ms * pairs.pace_of(row),
            prefill_ms=float(pairs.prefill_ms[row]),
            transfer_ms=float(pairs.tokens[column]) * self.pairs.links.ms_per_token(link)
            + float(pairs.wait_ms[row, column]),
            sending_ms=sending_ms,
            is_clean=not _waits(found.alone, column)
            and float(pairs.costs[QUEUE, min(row, pairs.costs.shape[1] - 1)] * pairs.features[QUEUE, row])
            <= MOST_WAIT * float(pairs.ttft_ms[row, column]),
        )


def _waits(expected: Expected, column: int) -> bool:
    """Return whether a request would wait for others on an endpoint, or may."""
    features, candidates = expected.features[:, column], expected.candidates
    return bool(features[QUEUE] or features[MEMORY] or float(candidates.waiting[column]) > 0.0)
