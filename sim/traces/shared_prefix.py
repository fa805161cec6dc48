"""Groups of prompts with a long system prompt in common: the workload of the published tiered-cache benchmark."""

from __future__ import annotations

from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from .trace import Trace, TraceRequest

Count = Annotated[int, Meta(ge=1)]


class SharedPrefixSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked; equal specs and seeds give equal traces. The words are those of the published benchmark's files.

    Attributes:
        num_groups: distinct system prompts.
        num_prompts_per_group: prompts behind each.
        system_prompt_len: tokens of a system prompt.
        question_len: tokens of a question, never the same twice.
        output_len: tokens generated.
        concurrency: requests under way at once; None to send at `rate`.
        rate: requests a second, at random times; only without `concurrency`.
        block_size: tokens a block id stands for.
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
    """The prompts of all groups in random order. Cost: O(blocks)."""
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
