"""Service times of a simulated GPU: one step, many equal steps, and copies between tiers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Speed of the simulated GPU, in seconds. `hardware.py` has measured and derived values.

    A step takes `step_s`, plus the longer of reading the weights and computing the prompt tokens, plus attention. Attention
    is from each prompt token to all tokens before it, and from each generated token to its whole context.

    Attributes:
        prefill_s_per_token: per uncached prompt token.
        load_s_per_token: per prompt token loaded from the CPU tier; one engine's loads run one after another.
        store_s_per_token: per prompt token copied to the CPU tier after the step that computed it; one after another.
        copy_speed_both_ways: speed of loads and stores while both run, relative to one of them alone.
        step_s: constant overhead per step; a request gets one token per step, regardless of the batch size.
        weights_s: reading the model's weights once; no additional time in steps with many prompt tokens.
        attention_s_per_pair: per pair of a prompt token and a token before it.
        context_s_per_token: per context token of a generated token.
        fetch_s_per_token: per prompt token read from the storage tier into the CPU tier.
        copies_overlap: whether the engine computes during loads and stores; if not, a copy extends the next step.
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

    def faster(self, speed: float) -> ServiceTimes:
        """Return the service times of a GPU that computes `speed` times as fast; copies take as long as here."""
        if speed == 1.0:
            return self
        return replace(
            self,
            prefill_s_per_token=self.prefill_s_per_token / speed,
            step_s=self.step_s / speed,
            weights_s=self.weights_s / speed,
            attention_s_per_pair=self.attention_s_per_pair / speed,
            context_s_per_token=self.context_s_per_token / speed,
        )

    def of_step(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        if not work.n_requests:
            return 0.0
        compute = max(self.weights_s, work.n_prefill * self.prefill_s_per_token)
        attention = work.n_pairs * self.attention_s_per_pair + work.n_context * self.context_s_per_token
        return self.step_s + compute + attention


@dataclass(slots=True)
class StepWork:
    """The work of one step.

    Attributes:
        n_requests: requests in the step.
        n_prefill: prompt tokens.
        n_pairs: pairs of a prompt token and a token before it.
        n_context: pairs of a generated token and a token before it.
    """

    n_requests: int = 0
    n_prefill: int = 0
    n_pairs: float = 0.0
    n_context: int = 0

    def add_prefill(self, n_tokens: int, *, end: int) -> None:
        """Add `n_tokens` of a prompt, which end at its token number `end`."""
        self.n_requests += 1
        self.n_prefill += n_tokens
        self.n_pairs += n_tokens * (end - n_tokens) + n_tokens * (n_tokens - 1) / 2

    def add_decode(self, *, n_context: int) -> None:
        """Add one generated token with `n_context` tokens before it."""
        self.n_requests += 1
        self.n_context += n_context


@dataclass(slots=True)
class Run:
    """Consecutive steps that differ only in the length of their contexts, and are computed together.

    Attributes:
        first_s: duration of the first step.
        growth_s: additional duration of each step compared with the one before.
        n_steps: number of steps, at least 1; an arrival reduces a run to its first step.
    """

    first_s: float
    growth_s: float = 0.0
    n_steps: int = 1

    def duration(self, n_steps: int) -> float:
        """Return the total seconds of the first `n_steps`."""
        return n_steps * self.first_s + self.growth_s * n_steps * (n_steps - 1) / 2

    def steps_within(self, seconds: float) -> int:
        """Count the steps that end within `seconds`, at most `n_steps`."""
        return bisect_right(range(1, self.n_steps + 1), seconds, key=self.duration)

    def steps_until(self, seconds: float) -> int:
        """Count the steps up to the first that ends at `seconds` or later, at most `n_steps`."""
        return min(self.n_steps, bisect_left(range(1, self.n_steps + 1), seconds, key=self.duration) + 1)
