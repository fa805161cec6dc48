"""Requests that are routed without waiting, compared with the same requests when every step waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from kvatlas.routing.router import Overload, Route, RoutingRequest, RoutingResult
from kvatlas.tokenization.encoding.encoding_pool import QUICK_CHARS, EncodingPool
from kvatlas.tokenization.encoding.tokenizer import load_tokenizer
from kvatlas.tokenization.eventual import Eventual, Later
from kvatlas.tokenization.model import ParsedRequest, Prompt
from kvatlas.tokenization.pipeline import PromptPipeline
from support.models import TINY
from support.picker_parts import PickerParts, picker_parts

NAMES = {"a": 1, "b": 0, "c": 2}
LONG = "".join(f"the quick brown fox {number} " for number in range(QUICK_CHARS // 20))


def chat(text: str, **fields: object) -> RoutingRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return RoutingRequest("/v1/chat/completions", json.dumps(body).encode())


def completion(prompt: str | list[int], **fields: object) -> RoutingRequest:
    return RoutingRequest("/v1/completions", json.dumps({"model": "m", "prompt": prompt, **fields}).encode())


SHORT = chat("Hello")
REQUESTS = {
    "chat": SHORT,
    "long_chat": chat(LONG),
    "longer_chat": chat(f"{LONG} and so on"),
    "text": completion("hello world " * 20),
    "long_text": completion(LONG),
    "two_texts": completion("hello world", truncate_prompt_tokens=4),
    "token_ids": completion(list(range(64))),
    "only_if_cached": replace(completion(list(range(64))), headers={"prefer": "if-available"}),
    "batch": replace(SHORT, headers={"x-llm-d-inference-objective": "batch"}),
    "rewrite": replace(SHORT, headers={"x-llm-d-model-name-rewrite": "lora"}),
    "no_template": chat("Hello", chat_template="{{ messages }}"),
    "no_json": RoutingRequest("/v1/completions", b"{"),
    "other_path": RoutingRequest("/metrics", b"{}"),
    "no_body": RoutingRequest("/v1/models", has_body=False),
    "subset": replace(SHORT, subset=frozenset({"a:80"})),
    "past_a_limit": RoutingRequest("/v1/completions", overload=Overload.HELD_BYTES),
}


class Waiting(PromptPipeline):
    """Makes every request wait."""

    def tokenize(self, request: ParsedRequest) -> Eventual[Prompt]:
        outcome = super().tokenize(request)

        async def waited() -> Prompt:
            await asyncio.sleep(0)
            return await outcome

        return Later(waited())


def timeless(outcome: RoutingResult) -> object:
    """Return the parts that must not depend on the time it took."""
    if not isinstance(outcome, Route):
        return outcome
    decision = outcome.decision
    scored = [
        (
            replace(each.candidate, load=None),
            [(term.name, term.rating.raw, term.rating.score) for term in each.terms],
            each.total,
            each.dropped,
        )
        for each in decision.scored
    ]
    columns = {"at", "chosen", "table", "inputs", "scores", "totals", "rows", "drops"}
    rest = {name: value for name, value in asdict(decision).items() if name not in columns}
    return outcome.addresses, scored, rest, outcome.response_headers, outcome.rewrite


def counted(parts: PickerParts) -> dict[tuple[str, str], float]:
    """Return every counter of the picker, and the number of timed decisions."""
    return {
        (sample.name, str(sample.labels)): sample.value
        for family in parts.registry.collect()
        for sample in family.samples
        if sample.name.startswith("kvatlas_") and sample.name.endswith(("_total", "_count"))
    }


async def outcomes(kinds: Sequence[str], pipeline: PromptPipeline) -> tuple[list[object], object, object]:
    """Return outcomes, counters and bookings of requests of these kinds, one after the other."""
    async with picker_parts(NAMES, n_fallbacks=1) as made:
        made.picker.pipeline = pipeline
        found = [timeless(await made.picker.route(REQUESTS[kind])) for kind in kinds]
        return found, counted(made), {name: made.fleet.in_flight.of(name) for name in NAMES}


@settings(max_examples=8)
@given(st.lists(st.sampled_from(sorted(REQUESTS)), min_size=1, max_size=16))
def test_outcomes_are_the_same_when_every_step_waits(kinds: list[str]) -> None:
    with closing(EncodingPool(timeout_s=60)) as pool:
        pipelines = [kind(load_tokenizer(TINY), pool=pool) for kind in (PromptPipeline, Waiting)]
        at_once, waited = (asyncio.run(outcomes(kinds, pipeline)) for pipeline in pipelines)

    assert at_once == waited


@pytest.mark.parametrize("kind", sorted(REQUESTS))
async def test_request_is_answered_at_once_unless_its_text_is_long_and_new(kind: str) -> None:
    with closing(EncodingPool(timeout_s=60)) as pool:
        async with picker_parts(NAMES) as made:
            made.picker.pipeline = PromptPipeline(load_tokenizer(TINY), pool=pool)
            nothing = counted(made)
            first = made.picker.route(REQUESTS[kind])
            waits = isinstance(first, Later)
            assert waits == (kind in {"long_chat", "longer_chat", "long_text", "two_texts"})
            if isinstance(first, Later):
                assert counted(made) == nothing
                assert isinstance(await first, Route)
            assert counted(made) != nothing
            again = made.picker.route(REQUESTS[kind])
            assert isinstance(again, Later) == (kind == "two_texts")
            if isinstance(again, Later):
                await again
