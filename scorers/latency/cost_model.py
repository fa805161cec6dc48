"""Cost model: what a request costs on each endpoint in milliseconds, learned from the requests that were routed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from operator import mul

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.operations import float_cells
from ..core.shared import SharedSums
from .accounts import Accounts
from .expected import Expected
from .features import Typical
from .fit import MAX_MILLISECONDS, log_error
from .fit_sums import FadingMean
from .groups import FitReport
from .held_prompts import Sharing
from .lengths import OutputLengths
from .lines import ATTENTION, LOG_PACE, MEMORY, N_FEATURES, N_LINES, PREFILL, QUEUE, TOKENS_IN_USE
from .means import RunningMean, SharedMeans
from .open_request import OpenRequest
from .operations import cost_totals
from .params import LatencyCostParams
from .tpot import REQUESTS, TOKEN, TOKEN_MS, TpotCosts
from .ttft import TtftCosts

MEAN_STEP = 0.01
"""Step of the running means of prompts and of times per output token, per observation."""

MOST_NEAR = 0.05
"""Largest part of a cost within which endpoints count as equal. Errors of single times are larger, but all endpoints share a part of
them, which does not change their order."""

MOST_TPOT = 8.0
"""Largest time per output token from which their mean is learned, as a multiple of the mean and of the expected time."""

MAX_PROFILES = 4
"""Profiles of which is kept what they expected of one request: as many stages as there are, and a fallback."""

NOTHING_OWN: FloatArray = np.zeros((N_LINES, 1))
NOTHING_OWN[TOKENS_IN_USE] = math.nan
NOTHING_OWN.flags.writeable = False


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
        learns: whether observed times change the costs.
        means: running means of what requests need.
    """

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self.learns, self._has_paces = params.fit, params.fit and not params.group_label
        self.ttft, self.tpot = TtftCosts(params, tiers), TpotCosts(params.group_label)
        self.lengths = OutputLengths()
        self.accounts = Accounts()
        self._last: deque[Expected] = deque(maxlen=MAX_PROFILES)
        """What was expected of the latest request, by each profile: it is the one that is picked next."""
        self._shows_beginnings: bool | None = None
        """Whether the gateway shows when responses begin; None before the first has begun or ended."""
        self._prompt_tokens, self._work_tokens = RunningMean(MEAN_STEP), RunningMean(MEAN_STEP)
        self._tpot_ms = RunningMean(MEAN_STEP, start=TOKEN_MS)
        self._error, self._tpot_error = FadingMean(), FadingMean()
        """Errors of the expected times to first token and per output token, see `log_error`."""
        self.means = SharedMeans(
            {"prompt": self._prompt_tokens, "work": self._work_tokens, "tpot": self._tpot_ms}
        )

    @property
    def shows_beginnings(self) -> bool:
        """Return whether the gateway is known to show when responses begin."""
        return self._shows_beginnings is True

    @property
    def work_tokens(self) -> float:
        """Return the running mean of the tokens that an endpoint computes for a request."""
        return self._work_tokens.value

    def residence_ms(self, model: str) -> float:
        """Return the milliseconds for which a request to a model usually holds its blocks: those of its response."""
        return self.lengths.mean(model) * self._tpot_ms.value

    @property
    def resolution(self) -> float:
        """Return the relative difference of costs below which the model does not distinguish them.

        It is the mean error of the times expected so far, and at most `MOST_NEAR`; costs that are not learned are taken as exact.
        """
        if not self.learns:
            return 0.0
        return min(self._error.mean, MOST_NEAR) if self._error.is_known else MOST_NEAR

    @property
    def ttft_error(self) -> float | None:
        """Return the mean absolute logarithm of observed by expected times to first token; None before the first."""
        return self._error.mean if self._error.is_known else None

    @property
    def tpot_error(self) -> float | None:
        """Return the same of the times per output token."""
        return self._tpot_error.mean if self._tpot_error.is_known else None

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
            "means": self.means.shared,
            "lengths": self.lengths.shared,
        }

    def expect(self, request: RequestView, candidates: Candidates) -> Expected:
        """Return what is expected of a request. Cost: some 30 operations on columns."""
        self.accounts.begin_due(now=request.now)
        self.ttft.fits.follow(candidates)
        self.tpot.fits.follow(candidates)
        rows = self.accounts.rows(candidates)  # which requests share the prompt is said by row
        sharing = self.accounts.sharing(request.prefix)
        accounts = self.accounts.columns(candidates, sharing)
        expected = self._expected(request, candidates, accounts, sharing or ())
        if self._last and not self._last[-1].is_of(request):
            self._last.clear()
        self._last.append(expected)
        self.accounts.releases.refine(
            expected.features,
            expected.costs,
            expected.ttft_ms,
            candidates.state,
            rows=rows,
            now=request.now,
            residence_ms=expected.residence_ms,
        )
        return expected

    def tpot_ms(self, expected: Expected) -> FloatArray:
        """Return the expected milliseconds per output token by endpoint."""
        features = self.tpot.features(expected.features, expected.accounts, now=expected.request.now)
        return cost_totals(features, self._tpot_costs(expected))

    def token_ms(self, expected: Expected) -> FloatArray:
        """Return the expected milliseconds per output token without what is in the batch: by endpoint, or one for all."""
        token_ms: FloatArray = self.tpot.fits.costs(expected.candidates)[TOKEN] * expected.pace
        return token_ms

    def tpot_delay_ms(self, expected: Expected) -> FloatArray:
        """Return by how much the request makes that of requests beside it longer: by its place in the batch, and once by its prompt."""
        terms = expected.terms_ms
        prompt_ms = terms[PREFILL] + terms[ATTENTION]
        delay: FloatArray = self._tpot_costs(expected)[REQUESTS] + prompt_ms / self.lengths.mean(
            expected.request.model
        )
        return delay

    def picked(self, request: RequestView, decision: Decision, *parts: Decision) -> None:
        """Follow a request that was sent to an endpoint, which computes its prompt unless another stage does.

        Args:
            request: the request.
            decision: that routed it.
            parts: decisions of stages that other endpoints do, to be followed too.
        """
        opened = self._follow(request, decision)
        if opened is not None and request.n_tokens:
            opened.lessons += (("prompt", float(request.n_tokens)),)
        for part in parts:
            self._follow(request, part)

    def _follow(self, request: RequestView, decision: Decision) -> OpenRequest | None:
        """Follow a decision, and return its request; None if its quantities are not finite: then it is not followed."""
        found, row = self._at_pick(request, decision)
        quantities = float_cells(found.features, row)
        if not all(map(math.isfinite, quantities)):
            return None
        own = float_cells(found.accounts, row)
        group, computes = self.ttft.fits.group_of(decision.best), decision.computing is decision
        work, busy_ms = self.ttft.work(group, quantities) if computes else (0.0, 0.0)
        work, pace = work * request.extent, math.exp(own[LOG_PACE])
        tpot = self.tpot.features_of(quantities, own, now=request.now)
        n_prompt = float(request.n_tokens)
        new = min(n_prompt, quantities[PREFILL] + sum(quantities[N_FEATURES:]))
        n_held = max(new, 0.0 if math.isnan(own[TOKENS_IN_USE]) else n_prompt - own[TOKENS_IN_USE])
        opened = OpenRequest(
            decision,
            self.accounts.row(decision.picked[0]),
            group,
            quantities,
            expected_ms=float(found.ttft_ms[row]),
            work=work,
            tokens=float(decision.best.computed_tokens(request) + request.output_tokens),
            n_held=n_held,
            tpot_features=tpot,
            computes=computes,
            is_new=found.is_new,
        )
        costs = self.tpot.fits.costs_of(group)
        opened.due_at = self.due_at(request, opened.expected_ms, busy_ms=busy_ms * pace)
        opened.expected_tpot_ms = self.accounts.relative_pace(opened.row) * sum(map(mul, costs, tpot))
        if computes and request.n_tokens:
            opened.lessons = (("work", opened.work),)
        self.accounts.open(
            opened, busy_ms=busy_ms * pace * request.extent, now=request.now, prefix=request.prefix
        )
        return opened

    def due_at(self, request: RequestView, expected_ms: float, *, busy_ms: float) -> float:
        """Return the monotonic seconds at which a response is taken to begin, infinite if its first byte shows that.

        Args:
            request: the request.
            expected_ms: milliseconds to the first token of its longest prompt.
            busy_ms: those of them in which that prompt is computed.
        """
        if request.is_streamed and self._shows_beginnings is not False:
            return math.inf
        return request.now + (expected_ms + (request.extent - 1.0) * busy_ms) / 1000.0

    def teach(self, request: OpenRequest) -> None:
        """Learn what requests need from one whose prompt was computed, once; those that failed say nothing of the load."""
        lessons, request.lessons = request.lessons, ()
        for name, observed in lessons:
            self.means.add(name, observed)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from the time to first token of a streamed response to one prompt that the endpoint computed itself."""
        request = self.accounts.find(decision) or self._unseen(decision)
        ms = ttft_s * 1000.0
        if not 0.0 < ms <= MAX_MILLISECONDS:
            return
        self._shows_beginnings = True
        self.teach(request)
        self.accounts.begun(request, now=decision.at + ttft_s)
        if not self.learns or not request.is_foreseen or decision.computing is not decision:
            return
        # what was expected is that of one prompt; without one the model may not have run at all
        if decision.n_prompts != 1 or not decision.n_tokens:
            return
        error = math.log(ms / request.expected_ms)
        self._error.add(log_error(ms, request.expected_ms))
        pace = self.accounts.pace(request.row) if self._has_paces else 1.0
        if self._has_paces and not request.features[QUEUE] and not request.features[MEMORY]:
            # a wait would say more of the load than of the speed
            pace = self.accounts.learn_pace(request.row, error)
        self.ttft.fits.observe(
            request.group, request.features, ms, expected_ms=request.expected_ms, pace=pace
        )

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Learn from the length of a response."""
        request = self.accounts.find(decision)
        if request is not None:
            request.n_output = n_tokens
        self.lengths.add(decision.model, n_tokens)

    def refused(self, decision: Decision) -> None:
        """Take back the work of a request whose prompt was not computed, and learn nothing from it; `ended` follows."""
        request = self.accounts.find(decision)
        if request is not None:
            self.accounts.refused(request)
            request.lessons, request.is_refused = (), True

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Forget a request, and learn from its time per output token; None if that is not known."""
        request = self.accounts.ended(decision)
        if request is not None:
            self.teach(request)
        if request is not None and request.ends_unseen and self._shows_beginnings is None:
            self._shows_beginnings = False
        ms = tpot_s * 1000.0 if tpot_s is not None else math.nan
        if not self.learns or not decision.n_tokens or not 0.0 < ms <= MAX_MILLISECONDS:
            return
        residence_ms = self.residence_ms(decision.model)
        if request is not None and request.n_output and residence_ms > 0.0:  # 0 if siblings told so
            self.accounts.releases.learn(ms * request.n_output / residence_ms)
        request = request or self._unseen(decision)
        most = MOST_TPOT * max(self._tpot_ms.value, request.expected_tpot_ms)
        self.means.add("tpot", min(ms, most))  # a stall is not a speed
        if request.expected_tpot_ms > 0.0:
            self._tpot_error.add(log_error(ms, request.expected_tpot_ms))
        self.tpot.fits.observe(
            request.group,
            request.tpot_features,
            ms,
            expected_ms=request.expected_tpot_ms,
            pace=self.accounts.relative_pace(request.row),
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

    def _expected(
        self,
        request: RequestView,
        candidates: Candidates,
        accounts: FloatArray,
        sharing: Sequence[Sharing] = (),
    ) -> Expected:
        residence_ms, pace = self.residence_ms(request.model), self.pace(accounts)
        quantities = self.ttft.quantities(
            request,
            candidates,
            accounts,
            pace=pace,
            typical=Typical(
                self._prompt_tokens.value,
                self._work_tokens.value,
                residence_ms,
                self.lengths.under_way(request.model),
            ),
        )
        return Expected(request, candidates, accounts, *quantities, residence_ms, pace, sharing)

    def _tpot_costs(self, expected: Expected) -> FloatArray:
        """Return the costs of the features of times per output token, shape (3, n)."""
        paces = self.accounts.relative_paces(expected.accounts)
        costs: FloatArray = self.tpot.fits.costs(expected.candidates) * paces
        return costs

    def expect_new(self, request: RequestView, candidates: Candidates) -> Expected:
        """Return what is expected of a request on endpoints without own requests."""
        return self._expected(request, candidates, NOTHING_OWN)

    def _at_pick(self, request: RequestView, decision: Decision) -> tuple[Expected, int]:
        """Return what was expected by the profile that made a decision, and the row of the picked endpoint in it."""
        for found in reversed(self._last):
            row = found.candidates.row(decision.picked[0]) if found.is_of(request) else None
            if row is not None:
                return found, row
        return self._expected_of(decision), 0

    def _expected_of(self, decision: Decision) -> Expected:
        """Return what is expected on the picked endpoint of a decision by the state that it saw alone."""
        view = RequestView(model=decision.model, now=decision.at, n_tokens=decision.n_tokens)
        return self.expect_new(view, Candidates.of([decision.best]))

    def _unseen(self, decision: Decision) -> OpenRequest:
        """Return a request whose pick was not seen, such as of another policy, which belongs to no account."""
        found = self._expected_of(decision)
        quantities = float_cells(found.features, 0)
        return OpenRequest(
            decision,
            row=-1,
            group=self.ttft.fits.group_of(decision.best),
            features=quantities,
            expected_ms=float(found.ttft_ms[0]),
            work=0.0,
            tokens=0.0,
            n_held=0.0,
            tpot_features=self.tpot.features_of(quantities, float_cells(found.accounts, 0), now=decision.at),
        )
