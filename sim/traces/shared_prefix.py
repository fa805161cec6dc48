"""Workload of the published tiered-cache benchmark: groups of prompts that share a long system prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from .trace import Trace, TraceRequest

Count = Annotated[int, Meta(ge=1)]


class SharedPrefixSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Specification of the prompts; equal specifications and seeds give equal traces.

    The names of the fields are those of the published benchmark's files.

    Attributes:
        num_groups: number of distinct system prompts.
        num_prompts_per_group: prompts per system prompt.
        system_prompt_len: tokens of a system prompt.
        question_len: tokens of a question; all questions differ.
        output_len: tokens generated.
        concurrency: number of concurrent requests; None to send at `rate`.
        rate: requests per second, at random times; only without `concurrency`.
        block_size: tokens per block id.
    """

    num_groups: Count
    num_prompts_per_group: Count
    system_prompt_len: Annotated[int, Meta(ge=0)]
    question_len: Count
    output_len: Count
    concurrency: Count | None = None
    rate: Annotated[float, Meta(gt=0)] = 1.0
    block_size: Count = 16

    @property
    def n_requests(self) -> int:
        """Number of requests."""
        return self.num_groups * self.num_prompts_per_group

    @property
    def n_ids(self) -> int:
        """Number of their block ids."""
        return self.n_requests * -(-(self.system_prompt_len + self.question_len) // self.block_size)


class Stage(msgspec.Struct, frozen=True):
    """Requests that arrive at random, `rate` per second for `seconds`."""

    rate: Annotated[float, Meta(gt=0)]
    seconds: Annotated[float, Meta(gt=0)]

    @property
    def n_requests(self) -> int:
        """Number of requests."""
        return round(self.rate * self.seconds)


PAUSE_S = 900.0
"""Pause between two stages, in which everything under way ends; a virtual clock passes it for nothing."""


def shared_prefix_trace(spec: SharedPrefixSpec, *, seed: int) -> Trace:
    """Generate the prompts of all groups once each, in random order. Cost: O(blocks)."""
    rng = Random(seed)
    prompts = _prompts(spec, rng)
    at_s = 0.0
    requests: list[TraceRequest] = []
    for prompt in prompts:
        requests.append(replace(prompt, at_s=at_s))
        at_s += 0.0 if spec.concurrency is not None else rng.expovariate(spec.rate)
    return Trace(_name(spec), spec.block_size, requests, spec.concurrency)


def staged_prefix_trace(spec: SharedPrefixSpec, stages: Sequence[Stage], *, seed: int) -> Trace:
    """Generate stages as the published benchmarks run them: one after another, each begun when the one before has ended.

    The prompts are taken in one random order, again from the first after the last. `concurrency` and `rate` of the
    specification have no effect. Cost: O(blocks).
    """
    rng = Random(seed)
    prompts = _prompts(spec, rng)
    requests: list[TraceRequest] = []
    began = 0.0
    for stage in stages:
        at_s = began
        for _ in range(stage.n_requests):
            at_s += rng.expovariate(stage.rate)
            requests.append(replace(prompts[len(requests) % len(prompts)], at_s=at_s))
        began = at_s + PAUSE_S
    return Trace(_name(spec), spec.block_size, requests)


def _name(spec: SharedPrefixSpec) -> str:
    return f"shared-prefix-{spec.system_prompt_len}"


def _prompts(spec: SharedPrefixSpec, rng: Random) -> list[TraceRequest]:
    groups = [group for group in range(spec.num_groups) for _ in range(spec.num_prompts_per_group)]
    rng.shuffle(groups)
    n_prompt = spec.system_prompt_len + spec.question_len
    n_shared = spec.system_prompt_len // spec.block_size
    n_own = -(-n_prompt // spec.block_size) - n_shared
    first_own = spec.num_groups * n_shared
    prompts: list[TraceRequest] = []
    for number, group in enumerate(groups):
        own = first_own + number * n_own
        prompts.append(
            TraceRequest(
                at_s=0.0,
                n_prompt=n_prompt,
                n_output=spec.output_len,
                ids=(*range(group * n_shared, (group + 1) * n_shared), *range(own, own + n_own)),
                session=f"group-{group}",
            )
        )
    return prompts
