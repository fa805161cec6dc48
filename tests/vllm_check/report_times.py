"""The section of docs/vllm-check.md on predicted times."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from .routing import Run
from .tables import table


def best_constant_error(observed: Sequence[float]) -> float:
    """Return the least mean of `abs(predicted / observed - 1)` that one prediction for all can have: it is one of the observed."""
    return min(mean(abs(each / value - 1.0) for value in observed) for each in observed)


def render_times(groups: Sequence[Sequence[Run]]) -> str:
    """Return the section; the runs of a group have replies of one length."""
    head = (
        "replies of",
        "mean time to first token",
        "its error",
        "by seed",
        "mean time per output token",
        "its error",
        "by seed",
        "best constant",
    )
    return f"""## Predicted times

kvatlas predicts both times when it sends a request. `latency` ran the workload above once more with half of the seeds, with longer
replies.

{table(head, [_row(runs) for runs in groups])}

- An error is the mean of `abs(predicted / observed - 1)` in the second half of a run. In the first half kvatlas learns how fast the
  servers are; it starts with the costs of a far faster GPU.
- *best constant* is the least error that one prediction of the time per output token could have for all requests of a second half, chosen
  afterwards. That time depends on the prompts that come while the reply is generated, which nobody knows when the request is sent. In
  a reply of 8 tokens a single prompt is most of it.
- The processors are shared with other work of their host: how fast they are may change from minute to minute."""


def _row(runs: Sequence[Run]) -> tuple[str, ...]:
    turns = [turn for run in runs for turn in run.workload.turns]
    errors = [run.errors for run in runs if run.errors is not None]
    constant = mean(best_constant_error(run.token_times_s[len(run.token_times_s) // 2 :]) for run in runs)
    return (
        f"{runs[0].spec.reply_tokens} tokens",
        f"{mean(turn.ttft_s for turn in turns) * 1000:.0f} ms",
        *_errors([each.ttft for each in errors]),
        f"{mean(time for run in runs for time in run.token_times_s) * 1000:.0f} ms",
        *_errors([each.tpot for each in errors]),
        f"{constant:.1%}",
    )


def _errors(of_runs: Sequence[float]) -> tuple[str, str]:
    """Return their mean, and each; nothing of a policy that predicts no times."""
    return (f"{mean(of_runs):.1%}", ", ".join(f"{each:.0%}" for each in of_runs)) if of_runs else ("", "")
