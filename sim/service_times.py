"""How long a simulated GPU takes: one step, many equal steps, and moves between tiers."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """How fast the simulated GPU is, in seconds. `hardware.py` has measured and derived values.

    A step takes `step_s`, plus the longer of reading the weights and computing the prompt tokens, plus attention: of
    prompt tokens to all before them, and of each generated token to its whole context.

    Attributes:
        prefill_s_per_token: each prompt token that was not cached.
        load_s_per_token: each prompt token read from the CPU tier; loads of one engine follow one another.
        store_s_per_token: each prompt token copied to the CPU tier, once the step that computed it is over; likewise.
        copy_speed_both_ways: speed of loads, and of stores, while both are under way, beside that of one alone.
        step_s: each step beside that; a request gets one token a step, however many run.
        weights_s: reading the model's weights once; hidden behind the prompt tokens of a step that has many.
        attention_s_per_pair: each prompt token with each token before it.
        context_s_per_token: each token of context that a generated token looks back on.
        fetch_s_per_token: each prompt token read from the storage tier into the CPU tier.
        copies_overlap: whether the engine computes while it loads and stores; if not, a copy stretches the next step.
    """

    prefill_s_per_token: float = 0.0002
    load_s_per_token: float = 0.00002
    store_s_per_token: float = 0.00002
    copy_speed_both_ways: float = 1.0
    step_s: float = 0.008
    weights_s: float = 0.0
    attention_s_per_pair: float = 0.0
    context_s_per_token: float = 0.0
    fetch_s_per_token: float = 0.00005
    copies_overlap: bool = True

    def of_step(self, work: StepWork) -> float:
        """Seconds of one step."""
        if not work.n_requests:
            return 0.0
        compute = max(self.weights_s, work.n_prefill * self.prefill_s_per_token)
        attention = work.n_pairs * self.attention_s_per_pair + work.n_context * self.context_s_per_token
        return self.step_s + compute + attention


@dataclass(slots=True)
class StepWork:
    """What a step computes.

    Attributes:
        n_requests: requests that compute anything.
        n_prefill: prompt tokens.
        n_pairs: sum over these of the tokens before each.
        n_context: sum over the generated tokens of the tokens before each.
    """

    n_requests: int = 0
    n_prefill: int = 0
    n_pairs: float = 0.0
    n_context: int = 0

    def add_prefill(self, n_tokens: int, *, end: int) -> None:
        """`n_tokens` of a prompt, the last of which is its token number `end`."""
        self.n_requests += 1
        self.n_prefill += n_tokens
        self.n_pairs += n_tokens * (end - n_tokens) + n_tokens * (n_tokens - 1) / 2

    def add_decode(self, *, n_context: int) -> None:
        """One generated token with `n_context` tokens before it."""
        self.n_requests += 1
        self.n_context += n_context


@dataclass(slots=True)
class Run:
    """Steps that differ in nothing but the length of their contexts, so that they can be done at once.

    Attributes:
        first_s: duration of the first.
        growth_s: how much longer each takes than the one before.
        n_steps: how many there are, at least 1; an arrival cuts a run to its first.
    """

    first_s: float
    growth_s: float = 0.0
    n_steps: int = 1

    def duration(self, n_steps: int) -> float:
        """Seconds of the first `n_steps` together."""
        return n_steps * self.first_s + self.growth_s * n_steps * (n_steps - 1) / 2

    def steps_within(self, seconds: float) -> int:
        """How many end by `seconds` after the begin, at most `n_steps`."""
        return bisect_right(range(1, self.n_steps + 1), seconds, key=self.duration)
