"""Workload of agents: each request repeats the whole conversation, and is sent after the previous response."""

from __future__ import annotations

from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from .trace import Trace, TraceRequest

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


class AgentsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Specification of the agents; equal specifications and seeds give equal traces.

    Attributes:
        agents: number of conversations.
        turns: requests per conversation.
        tool_sets: number of distinct system prompts, assigned to the agents in rotation.
        system_len: tokens of a system prompt.
        turn_len: mean tokens that a turn adds to the prompt, such as a tool's result; exponentially distributed.
        output_len: mean tokens generated per turn; exponentially distributed.
        think_s: mean seconds from a response to the next request; exponentially distributed.
        starts_per_s: agents that start per second, at random times.
        block_size: tokens per block id.
    """

    agents: Count = 200
    turns: Count = 12
    tool_sets: Count = 8
    system_len: Count = 6000
    turn_len: Count = 1200
    output_len: Count = 250
    think_s: Positive = 4.0
    starts_per_s: Positive = 0.5
    block_size: Count = 64

    @property
    def n_requests(self) -> int:
        """Number of requests."""
        return self.agents * self.turns

    @property
    def n_ids(self) -> int:
        """Mean number of their block ids."""
        n_tokens = self.system_len + (self.turn_len + self.output_len) * (self.turns + 1) // 2
        return self.n_requests * (n_tokens // self.block_size + 1)


def agents_trace(spec: AgentsSpec, *, seed: int) -> Trace:
    """Generate all turns of all agents, agent by agent. Cost: O(blocks)."""
    rng = Random(seed)
    n_system = spec.system_len // spec.block_size
    next_id = spec.tool_sets * n_system
    requests: list[TraceRequest] = []
    at_s = 0.0
    for agent in range(spec.agents):
        at_s += rng.expovariate(spec.starts_per_s)
        first = agent % spec.tool_sets * n_system
        ids = list(range(first, first + n_system))
        n_tokens = spec.system_len
        for turn in range(spec.turns):
            n_prompt = n_tokens + _length(rng, spec.turn_len)
            n_output = _length(rng, spec.output_len)
            n_tokens = n_prompt + n_output
            # one more than the full blocks: ids beyond the prompt's mean that the output's blocks are known
            n_new = n_tokens // spec.block_size + 1 - len(ids)
            ids += range(next_id, next_id + n_new)
            next_id += n_new
            requests.append(
                TraceRequest(
                    at_s=rng.expovariate(1 / spec.think_s) if turn else at_s,
                    n_prompt=n_prompt,
                    n_output=n_output,
                    ids=tuple(ids),
                    session=f"agent-{agent}",
                    after=len(requests) - 1 if turn else None,
                )
            )
    return Trace(f"agents-{spec.agents}x{spec.turns}", spec.block_size, requests)


def _length(rng: Random, mean: int) -> int:
    return 1 + int(rng.expovariate(1 / mean))
