"""Audit: verdicts, assignment of reused tokens to tiers, lost and recovered credit, and a recorded engine."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.stream import Trust
from kvatlas.events.wire import decode_batch
from kvatlas.fleet.audit import BEYOND, FORGIVEN_S, Audit, Audited, TierState, Verdict, judge, tier_reuse
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.learned_bound import TierReuse
from kvatlas.indexer.match import PrefixMatch
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSource, TierSpec, TierTable
from kvatlas.scorers.core.decision import Decision
from support.candidates import TIERS, endpoint, match_of, matches
from support.rating import routed_to
from support.recording import read_frames, read_truth

TOLD = {tier: TierState(TierSource.EVENTS, is_full=False) for tier in TIERS}
FULL = {tier: TierState(TierSource.EVENTS, is_full=True) for tier in TIERS}
INFERRED = TOLD | {"cpu": TierState(TierSource.INFERRED, is_full=False)}
ROUTED = {tier: TierState(TierSource.ROUTING, is_full=False) for tier in TIERS}
GPU_4_CPU_8 = match_of(0b1111, 0b11111111, n_blocks=10)
"""Of 10 blocks of 16 tokens: 64 usable tokens from the GPU, 64 more from CPU memory."""
PREDICTED = msgspec.structs.replace(GPU_4_CPU_8, predicted_blocks=3)


def decision(prefix: PrefixMatch | None, *, trust: Trust = Trust.LIVE, **more: Any) -> Decision:
    candidate = msgspec.structs.replace(endpoint("e", prefix=prefix), trust=trust)
    return routed_to(candidate, n_tokens=161, **more)


def judged(
    made: Decision,
    cached: int,
    *,
    prompt: int = 161,
    ran_on: int | None = 0,
    tiers: dict[str, TierState] = TOLD,
) -> Audited:
    found = judge(made, prompt_tokens=prompt, cached_tokens=cached, ran_on=ran_on, tiers=tiers)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("made", "cached", "more", "verdict", "tier"),
    [
        pytest.param(decision(GPU_4_CPU_8), 128, {}, Verdict.GOOD, None, id="as_expected"),
        pytest.param(decision(GPU_4_CPU_8), 113, {}, Verdict.GOOD, None, id="less_than_a_block_apart"),
        pytest.param(
            decision(GPU_4_CPU_8), 0, {"prompt": 160}, Verdict.TOKENIZER, None, id="other_prompt_tokens"
        ),
        pytest.param(
            decision(GPU_4_CPU_8), 0, {"ran_on": None}, Verdict.OTHER_RANK, "gpu", id="unknown_rank"
        ),
        pytest.param(decision(GPU_4_CPU_8), 0, {"ran_on": 1}, Verdict.OTHER_RANK, "gpu", id="other_rank"),
        pytest.param(
            decision(GPU_4_CPU_8, trust=Trust.PARTIAL), 0, {}, Verdict.STALE, "gpu", id="events_incomplete"
        ),
        pytest.param(decision(GPU_4_CPU_8), 160, {}, Verdict.EVENT_LAG, None, id="more_than_expected"),
        pytest.param(
            decision(GPU_4_CPU_8, trust=Trust.DARK),
            160,
            {"tiers": ROUTED},
            Verdict.EVENT_LAG,
            None,
            id="more_than_routing_taught",
        ),
        pytest.param(decision(PREDICTED), 80, {}, Verdict.TOO_EARLY, "cpu", id="only_predicted"),
        pytest.param(decision(PREDICTED), 64, {}, Verdict.UNKNOWN, "cpu", id="less_than_was_there"),
        pytest.param(decision(GPU_4_CPU_8), 64, {"tiers": FULL}, Verdict.EVICTED, "cpu", id="tier_is_full"),
        pytest.param(
            decision(GPU_4_CPU_8), 64, {"tiers": INFERRED}, Verdict.EVICTED, "cpu", id="evictions_not_told"
        ),
        pytest.param(
            decision(GPU_4_CPU_8), 16, {"tiers": INFERRED}, Verdict.UNKNOWN, "gpu", id="of_a_tier_that_tells"
        ),
        pytest.param(
            decision(GPU_4_CPU_8, trust=Trust.DARK),
            0,
            {"tiers": ROUTED},
            Verdict.EVICTED,
            "gpu",
            id="known_from_routing",
        ),
    ],
)
def test_verdict_is_the_first_that_fits(
    made: Decision, cached: int, more: dict[str, Any], verdict: Verdict, tier: str | None
) -> None:
    found = judged(made, cached, **more)

    assert (found.verdict, found.tier, found.error_tokens) == (verdict, tier, 128 - cached)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(decision(None), id="no_keys"),
        pytest.param(decision(GPU_4_CPU_8, n_prompts=2), id="several_prompts"),
        # vLLM 0.33 reports 352 cached tokens for a new prompt of 366 with n=3: what the first choice had computed
        pytest.param(decision(GPU_4_CPU_8, n_choices=3), id="several_choices"),
        pytest.param(decision(GPU_4_CPU_8, no_prefix_reason="no_tokenizer"), id="tokens_unknown"),
        pytest.param(decision(GPU_4_CPU_8, cut_reason="media"), id="end_unknown"),
    ],
)
def test_request_without_expectation_of_the_whole_prompt_is_not_judged(made: Decision) -> None:
    assert judge(made, prompt_tokens=161, cached_tokens=0, ran_on=0, tiers=TOLD) is None


@pytest.mark.parametrize("prompt", [161, 160])
def test_more_reused_tokens_than_the_prompt_has_are_not_judged(prompt: int) -> None:
    made = decision(GPU_4_CPU_8)
    for cached, is_judged in ((prompt, True), (prompt + 1, False), (2**53, False)):
        found = judge(made, prompt_tokens=prompt, cached_tokens=cached, ran_on=0, tiers=INFERRED)
        assert (found is not None) is is_judged


@given(match=matches(), cached=st.integers(0, 161))
def test_reused_tokens_fill_the_expected_tiers_in_the_order_of_the_prompt(
    match: PrefixMatch, cached: int
) -> None:
    found = judged(decision(match), cached)

    assert sum(found.expected.values()) == match.usable_tokens
    assert sum(found.reused.values()) == cached
    within = {tier: tokens for tier, tokens in found.reused.items() if tier != BEYOND}
    assert all(tokens <= found.expected[tier] for tier, tokens in within.items())
    filled = [found.reused[tier] == tokens for tier, tokens in found.expected.items()]
    assert filled == sorted(filled, reverse=True), "a tier gives nothing before the faster ones are filled"
    assert (BEYOND in found.reused) == (cached > match.usable_tokens)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        pytest.param(judged(decision(GPU_4_CPU_8), 128), TierReuse(64, 64, 0), id="as_expected"),
        pytest.param(judged(decision(GPU_4_CPU_8), 113), TierReuse(64, 64, 0), id="less_than_a_block_apart"),
        pytest.param(judged(decision(GPU_4_CPU_8), 80, tiers=INFERRED), TierReuse(64, 16, 0), id="evicted"),
        pytest.param(judged(decision(GPU_4_CPU_8), 160), TierReuse(64, 64, 32), id="more_than_expected"),
        pytest.param(judged(decision(GPU_4_CPU_8), 0, tiers=FULL), None, id="evicted_from_another_tier"),
        pytest.param(judged(decision(PREDICTED), 80), None, id="only_predicted"),
        pytest.param(judged(decision(GPU_4_CPU_8), 0, prompt=160), None, id="other_tokens"),
    ],
)
def test_tier_s_capacity_shows_in_what_was_expected_of_it_and_in_what_was_not(
    found: Audited, shown: TierReuse | None
) -> None:
    assert tier_reuse(found, "cpu") == shown


def audited(expected: int, reused: int, verdict: Verdict) -> Audited:
    beyond = {BEYOND: reused - expected} if reused > expected else {}
    return Audited("e", verdict, None, {"gpu": expected}, {"gpu": min(expected, reused)} | beyond)


GOOD, BAD = audited(1000, 1000, Verdict.GOOD), audited(1000, 0, Verdict.UNKNOWN)


def test_credit_falls_with_what_was_not_reused_and_comes_back_when_it_is_again() -> None:
    audit = Audit()
    credit: list[float] = []
    for each in [GOOD] * 20 + [BAD] * 40 + [GOOD] * 60:
        audit.add(each, now=0.0)
        credit.append(audit.doubts(now=0.0).get("e", 1.0))

    good, bad, again = credit[:20], credit[20:60], credit[60:]
    assert set(good) == {1.0}
    assert bad[1:] == sorted(bad[1:], reverse=True)
    assert bad[-1] < 0.02
    assert again == sorted(again)
    assert again[-1] == 1.0


def test_credit_needs_evidence() -> None:
    audit = Audit()
    for _ in range(4):
        audit.add(BAD, now=0.0)

    before = audit.doubts(now=0.0).get("e", 1.0)
    for _ in range(3):
        audit.add(BAD, now=0.0)

    assert (before, audit.doubts(now=0.0).get("e", 1.0), audit.doubts(now=0.0).get("unknown", 1.0)) == (
        1.0,
        0.0,
        1.0,
    )


@pytest.mark.parametrize(
    "verdict", [Verdict.TOKENIZER, Verdict.OTHER_RANK, Verdict.EVENT_LAG, Verdict.TOO_EARLY]
)
def test_credit_does_not_fall_by_what_is_no_fault_of_the_index(verdict: Verdict) -> None:
    audit = Audit()
    for _ in range(20):
        audit.add(audited(1000, 0, verdict), now=0.0)

    assert audit.doubts(now=0.0).get("e", 1.0) == 1.0


def test_lost_credit_comes_back_with_time_and_is_lost_again() -> None:
    audit = Audit()
    for _ in range(20):
        audit.add(BAD, now=100.0)

    times = [100.0, 100.0 + FORGIVEN_S, 100.0 + 100 * FORGIVEN_S]
    assert [audit.doubts(now=now).get("e", 1.0) for now in times] == pytest.approx(
        [0.0, 0.632, 1.0], abs=0.001
    )
    audit.add(BAD, now=times[-1])
    assert audit.doubts(now=times[-1]).get("e", 1.0) == 0.0


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([1e6, -1e6, 0.0], id="less_than_nothing_reused"),
        pytest.param([-1e6, 1e6, 0.0], id="less_than_nothing_expected"),
        pytest.param([1e6, 2e6, 0.0], id="more_reused_than_expected"),
        pytest.param([1e6, 0.0, -1e6], id="future"),
        pytest.param([1e6, 0.0], id="two_numbers"),
    ],
)
def test_credit_does_not_fall_by_evidence_that_no_process_can_have(told: list[float]) -> None:
    audit = Audit()
    audit.shared.take("sibling", "e", told, now=0.0)
    assert audit.doubts(now=0.0) == {}

    for _ in range(10):
        audit.add(BAD, now=0.0)
    assert audit.doubts(now=0.0) == {"e": 0.0}


def test_books_have_everything_that_was_judged() -> None:
    audit = Audit()
    for each in (GOOD, BAD, audited(100, 150, Verdict.EVENT_LAG)):
        audit.add(each, now=0.0)

    books = audit.of("e")

    assert books is not None
    assert (books.expected, books.reused) == ({"gpu": 2100}, {"gpu": 1100, BEYOND: 50})
    assert (books.over_tokens, books.under_tokens) == (1000, 50)
    given = {verdict: count for verdict, count in books.verdicts.items() if count}
    assert given == {Verdict.GOOD: 1, Verdict.UNKNOWN: 1, Verdict.EVENT_LAG: 1}
    audit.forget("e")
    audit.forget("unknown")
    assert audit.of("e") is None


def test_recorded_engine_reuses_what_is_expected_of_its_tiers(golden: Path) -> None:
    """Replay a recorded engine with a GPU and a CPU tier, with its events applied before each request."""
    specs = [TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=index_core())
    atlas.add("e")
    audit = Audit()
    frames = read_frames(golden / "run8_zmq.jsonl")
    for request in read_truth(golden / "run8_truth.jsonl"):
        while frames and frames[0].received_at < request.t0:
            atlas.apply("e", 0, decode_batch(frames.pop(0).parts[2]).events)
        lora = None if request.model == "tiny" else request.model
        prefix = Prefix(array("I", request.tokens), lora=lora, salt=request.salt)
        made = msgspec.structs.replace(decision(atlas.match(prefix).get("e")), n_tokens=prefix.n_tokens)
        found = judge(
            made,
            prompt_tokens=len(request.tokens),
            cached_tokens=request.cached_tokens,
            ran_on=0,
            tiers=TOLD,
        )
        if found is not None:
            audit.add(found, now=request.t0)

    books = audit.of("e")
    assert books is not None
    assert books.verdicts[Verdict.GOOD] == sum(books.verdicts.values()) == 149
    assert books.expected == books.reused
    assert min(books.expected["gpu"], books.expected["cpu"]) > 0
