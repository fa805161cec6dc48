"""Workload of the published tiered-cache benchmark: groups of prompts that share a long system prompt."""

from __future__ import annotations

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


def shared_prefix_trace(spec: SharedPrefixSpec, *, seed: int) -> Trace:
    """Generate the prompts of all groups in random order. Cost: O(blocks)."""
    rng = Random(seed)
    groups = [group for group in range(spec.num_groups) for _ in range(spec.num_prompts_per_group)]
    rng.shuffle(groups)
    n_prompt = spec.system_prompt_len + spec.question_len
    n_shared = spec.system_prompt_len // spec.block_size
    n_own = -(-n_prompt // spec.block_size) - n_shared
    first_own = spec.num_groups * n_shared
    at_s = 0.0
    requests: list[TraceRequest] = []
    for number, group in enumerate(groups):
        own = first_own + number * n_own
        requests.append(
            TraceRequest(
                at_s=at_s,
                n_prompt=n_prompt,
                n_output=spec.output_len,
                ids=(*range(group * n_shared, (group + 1) * n_shared), *range(own, own + n_own)),
                session=f"group-{group}",
            )
        )
        at_s += 0.0 if spec.concurrency is not None else rng.expovariate(spec.rate)
    return Trace(f"shared-prefix-{spec.system_prompt_len}", spec.block_size, requests, spec.concurrency)
