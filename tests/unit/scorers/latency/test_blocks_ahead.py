"""Cost model: blocks that requests ahead will need, and those that they share with requests under way."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.latency.cost_model import CostModel
from kvatlas.scorers.latency.lengths import PRIOR_TOKENS
from kvatlas.scorers.latency.lines import MEMORY
from kvatlas.scorers.latency.params import LatencyCostParams
from kvatlas.scorers.latency.tpot import TOKEN_MS
from support.candidates import endpoint, held, load
from support.rating import routed_to

N_TOKENS, GPU_TOKENS = 1600, 8000
PROMPT = N_TOKENS / GPU_TOKENS
"""Part of the blocks that a prompt takes."""

GENERATED = PRIOR_TOKENS / 2 / GPU_TOKENS
"""That of what a response has so far."""

RESIDENCE_MS = PRIOR_TOKENS * TOKEN_MS


def request(first: int) -> RequestView:
    """Return a request whose prompt shares everything with others of the same first token, and nothing with others."""
    return RequestView(model="m", now=0.0, n_tokens=N_TOKENS, prefix=Prefix(array("I", [first] * N_TOKENS)))


def send(costs: CostModel, asked: RequestView, *, gpu: int = 0, cpu: int = 0) -> Decision:
    """Route a request to the endpoint; it has the blocks `gpu` and `cpu` in its memories."""
    seen = endpoint("a", prefix=held(gpu=gpu, cpu=cpu, n_blocks=100))
    costs.expect(asked, Candidates.of([seen]))
    decision = routed_to(seen, n_tokens=N_TOKENS)
    costs.picked(asked, decision)
    return decision


def missing(
    costs: CostModel, *, kv: float, running: int, waiting: int, gpu_tokens: int = GPU_TOKENS
) -> float:
    """Return the part of the blocks that must become free before a prompt of its own begins."""
    now: Candidate = endpoint(
        "a",
        prefix=held(n_blocks=100),
        of=load(running=running, waiting=waiting, kv=kv, gpu_tokens=gpu_tokens),
        in_flight=(running + waiting, N_TOKENS),
    )
    return float(costs.expect(request(99), Candidates.of([now])).features[MEMORY, 0]) / RESIDENCE_MS


def model() -> CostModel:
    return CostModel(LatencyCostParams(fit=False), ("gpu", "cpu"))


@pytest.mark.parametrize("kv", [0.3, 0.6, 1.0])
def test_requests_not_begun_need_their_blocks_whether_the_engine_has_given_them_or_not(kv: float) -> None:
    """Each takes a fifth of the blocks: four wait, at first for all, then for none of theirs, and one is the question."""
    costs = model()
    costs.answered(send(costs, request(0)), ttft_s=1.0)
    for first in range(1, 5):
        send(costs, request(first), cpu=100)

    needed = 5 * PROMPT + GENERATED
    assert missing(costs, kv=kv, running=1, waiting=4) == pytest.approx(needed + PROMPT - 1 + kv / 2)


def test_what_the_engine_uses_counts_if_it_is_more() -> None:
    costs = model()
    costs.answered(send(costs, request(0)), ttft_s=1.0)
    send(costs, request(1))

    assert missing(costs, kv=0.95, running=1, waiting=1) == pytest.approx(0.95 + PROMPT - 1 + 0.95 / 2)


def test_prompts_of_running_requests_show_what_a_token_takes_where_the_engine_does_not_tell() -> None:
    costs = model()
    costs.answered(send(costs, request(0)), ttft_s=1.0)
    send(costs, request(1))
    token = 0.8 / (N_TOKENS + PRIOR_TOKENS / 2)

    lacking = 0.8 + 2 * N_TOKENS * token - 1
    assert missing(costs, kv=0.8, running=1, waiting=1, gpu_tokens=0) == pytest.approx(lacking + 0.8 / 2)


def test_blocks_that_processes_share_count_no_more_than_are_in_use() -> None:
    costs, sibling = model(), model()
    for each in (costs, sibling):
        each.answered(send(each, request(1)), ttft_s=1.0)
    for number in range(8):
        costs.accounts.shared.take(f"x{number}", "a", sibling.accounts.shared.own("a", 0.0), now=0.0)

    assert missing(costs, kv=0.4, running=9, waiting=0) == 0.0


def test_requests_that_wait_need_what_no_request_holds_whose_response_has_begun() -> None:
    costs = model()
    first = send(costs, request(1))
    costs.answered(first, ttft_s=1.0)
    for other in (1, 1, 2, 3, 4, 5):
        send(costs, request(other))
    shared = 5 * PROMPT + GENERATED

    assert missing(costs, kv=0.5, running=1, waiting=6) == pytest.approx(shared + PROMPT - 1 + 0.5 / 2)

    costs.ended(first, tpot_s=None)
    assert missing(costs, kv=0.0, running=0, waiting=6) == pytest.approx(5 * PROMPT + PROMPT - 1), (
        "the two need the blocks of their prompt, once"
    )


def test_request_whose_blocks_others_hold_will_hold_no_more_than_the_rest() -> None:
    costs = model()
    first = send(costs, request(1))
    costs.answered(first, ttft_s=1.0)
    found = [costs.accounts.find(each) for each in (first, send(costs, request(1), gpu=90))]

    assert [each.n_held if each is not None else None for each in found] == [N_TOKENS, N_TOKENS / 10]


def test_wait_for_blocks_says_nothing_of_the_speed() -> None:
    costs = CostModel(LatencyCostParams(), ("gpu", "cpu"))
    full = endpoint("a", of=load(running=8, kv=0.99, gpu_tokens=GPU_TOKENS))
    for number in range(10):
        asked = request(number)
        costs.expect(asked, Candidates.of([full]))
        decision = routed_to(full, n_tokens=N_TOKENS)
        costs.picked(asked, decision)
        costs.answered(decision, ttft_s=90.0)
        costs.ended(decision, tpot_s=None)

    assert costs.accounts.pace(costs.accounts.row("a")) == 1.0


def test_short_waits_do_not_make_long_ones_look_like_nothing() -> None:
    costs = CostModel(LatencyCostParams(fit=True), ("gpu", "cpu"))
    empty, full = (endpoint("a", of=load(running=8, kv=kv, gpu_tokens=GPU_TOKENS)) for kv in (0.1, 0.99))
    asked = msgspec.structs.replace(request(1), prefix=None)
    alone_s = float(model().expect(asked, Candidates.of([empty])).ttft_ms[0]) / 1000.0
    for number in range(400):
        seen = empty if number % 8 else full
        costs.expect(asked, Candidates.of([seen]))
        decision = routed_to(seen, n_tokens=N_TOKENS)
        costs.picked(asked, decision)
        costs.answered(decision, ttft_s=alone_s)
        costs.ended(decision, tpot_s=None)

    (report,) = costs.reports()
    assert report.is_fitted
    assert report.costs_ms["memory"] == 0.3
