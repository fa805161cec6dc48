"""The published benchmark: its deployment, workloads and figures."""

from __future__ import annotations

from ..traces.shared_prefix import SharedPrefixSpec

SOURCE = "llm-d guide Offloading Prefix Cache to CPU Memory at commit 97b61b84, Benchmarking, GPU; vLLM with its native offloading connector"

SERVERS = 8
CPU_BLOCKS = 41_000
"""`num_cpu_blocks` of each engine."""

WORKLOADS = {
    name: SharedPrefixSpec(
        num_groups=45,
        num_prompts_per_group=10,
        system_prompt_len=length,
        question_len=256,
        output_len=1024,
        concurrency=45,
    )
    for name, length in (("high cache", 30_000), ("low cache", 8_000))
}

FIGURES = ("ttftMean", "ttftP90", "e2eMean", "e2eP90", "tokensPerSecond")
"""The published ones of `sim.replay.figures`: seconds, and prompt and generated tokens per second."""

BASELINE = {"high cache": (9.0, 20.9, 37.8, 49.7, 38_534.8), "low cache": (0.12, 0.09, 18.4, 19.6, 23_389.6)}
OFFLOADING = {
    "high cache": (6.7, 20.2, 30.9, 44.2, 46_751.0),
    "low cache": (0.13, 0.11, 18.6, 20.6, 23_032.6),
}
"""Figures in the order of `FIGURES`, by workload."""
