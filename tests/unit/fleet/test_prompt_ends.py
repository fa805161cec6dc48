"""What endpoints reuse of prompts that are held whole."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.prompt_ends import ENOUGH, LABEL, PromptEnds
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import CoreName
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.cores import CORES

BLOCK = 16


def answer(
    *, expected: int, reused: int, prompt: int = 4 * BLOCK, held: int = 4, verdict: Verdict = Verdict.UNKNOWN
) -> Audited:
    """Return an answer to a prompt whose first block is on the GPU; blocks in `cpu`."""
    return Audited(
        "e", verdict, "cpu", {"gpu": BLOCK, "cpu": (expected - 1) * BLOCK},
        {"gpu": BLOCK, "cpu": (reused - 1) * BLOCK}, {"gpu": BLOCK, "cpu": held * BLOCK}, prompt_tokens=prompt,
    )  # fmt: skip


CAPPED, WHOLE = answer(expected=4, reused=3), answer(expected=3, reused=4)


def shown_by(*answers: Audited) -> bool | None:
    ends = PromptEnds({})
    for each in answers:
        ends.learn(each, block_size=BLOCK, unit_tokens=BLOCK)
    return ends.shown


def test_rule_is_reported_after_enough_answers_in_a_row() -> None:
    assert shown_by(*[CAPPED] * ENOUGH) is False
    assert shown_by(*[WHOLE] * ENOUGH) is True
    assert shown_by(*[CAPPED] * (ENOUGH - 1)) is None
    assert shown_by(*[CAPPED] * (ENOUGH - 1), answer(expected=4, reused=4), CAPPED) is None


@pytest.mark.parametrize(
    "useless",
    [
        pytest.param(answer(expected=4, reused=3, prompt=4 * BLOCK + 1), id="no_block_ends_it"),
        pytest.param(answer(expected=4, reused=3, held=3), id="not_held_whole"),
        pytest.param(answer(expected=4, reused=2), id="two_blocks_less"),
        pytest.param(answer(expected=4, reused=3, verdict=Verdict.STALE), id="events_missing"),
    ],
)
def test_other_answers_say_nothing(useless: Audited) -> None:
    assert shown_by(*[useless] * 9) is None


@pytest.mark.parametrize(("label", "said"), [("true", True), ("false", False), ("maybe", None), (None, None)])
def test_label_sets_the_rule(label: str | None, said: bool | None) -> None:
    assert PromptEnds({} if label is None else {LABEL: label}).said is said


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("medium", "whole_prompts", "usable"),
    [
        pytest.param("CPU", None, 4, id="vllm_reuses_what_its_cpu_tier_has"),
        pytest.param("CPU_PINNED", None, 3, id="sglang_computes_the_last_block"),
        pytest.param("CPU", False, 3, id="told_not_to"),
        pytest.param("CPU_PINNED", True, 4, id="told_to"),
    ],
)
def test_events_tell_the_rule_unless_it_is_set(
    core: CoreName, medium: str, whole_prompts: bool | None, usable: int
) -> None:
    atlas = Atlas(
        tiers=TierTable((TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU", "CPU_PINNED")))),
        seed=0,
        core=CORES[core],
    )
    atlas.add("e")
    atlas.ledger("e", 0).set_reuse(0, whole_prompts=whole_prompts)
    tokens, hashes = array("I", range(4 * BLOCK)), tuple(map(EngineHash, range(1, 5)))
    atlas.apply("e", 0, [BlockStored(hashes, None, tokens, BLOCK)])
    for block, engine_hash in enumerate(hashes):
        own, parent = tokens[block * BLOCK : (block + 1) * BLOCK], hashes[block - 1] if block else None
        atlas.apply("e", 0, [BlockStored((engine_hash,), parent, own, BLOCK, MediumName(medium))])
    match = atlas.match(atlas.prefix(tokens))["e"]
    assert match.usable_tokens == usable * BLOCK
