"""The published ladders: deployment, stages, and figures of each arm at each rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...traces.shared_prefix import SharedPrefixSpec, Stage
from ...workloads import OPTIMIZED, TIERED

PublishedFigures = Mapping[float, Sequence[float | None]]
"""Rate -> figures in the order of the ladder's `figures`; None if the report has none."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way in which the benchmark was run.

    Attributes:
        name: for the page.
        guide: policy of the guide for it, by its name in `policies`.
        has_cpu: whether the servers have a CPU tier.
        published: its figures.
    """

    name: str
    guide: str
    has_cpu: bool
    published: PublishedFigures


@dataclass(frozen=True, slots=True)
class Ladder:
    """A published benchmark.

    Attributes:
        name: for the page, unique.
        spec: its prompts.
        warm_up: stages before the first whose figures are published.
        stages: the stages whose figures are published; each rate once.
        figures: names of the published figures, as in `sim.replay.figures`.
        arms: the ways in which it was run.
    """

    name: str
    spec: SharedPrefixSpec
    warm_up: tuple[Stage, ...]
    stages: tuple[Stage, ...]
    figures: tuple[str, ...]
    arms: tuple[Arm, ...]


TIERED_LADDER = Ladder(
    name="tiered",
    spec=TIERED,
    warm_up=(),
    stages=tuple(Stage(rate, 60.0) for rate in (5.0, 10.0, 20.0, 40.0)),
    figures=("ttftMean", "ttftP90", "e2eMean", "tokensPerSecond"),
    arms=(
        Arm(
            "GPU alone",
            "optimized-baseline",
            has_cpu=False,
            published={
                5.0: (1.62, 2.65, 11.98, 74_638.5),
                10.0: (8.08, 16.61, 26.28, 122_387.7),
                20.0: (43.67, 78.13, 62.29, 114_663.2),
                40.0: (115.57, 206.39, 134.78, 115_645.0),
            },
        ),
        Arm(
            "GPU and CPU",
            "tiered",
            has_cpu=True,
            published={
                5.0: (1.17, 1.79, 11.49, 82_880.0),
                10.0: (0.41, 1.31, 6.97, 167_027.5),
                20.0: (0.89, 2.66, 9.03, 300_749.2),
                40.0: (25.38, 48.14, 33.95, 331_212.6),
            },
        ),
    ),
)
"""llm-d guide tiered-prefix-cache at 05126b7e, CPU Offloading Benchmarking Results, GPU."""

_SECONDS = {3: 20, 10: 20, 15: 20, 20: 38, 22: 34, 25: 30, 30: 25, 35: 21, 40: 38, 43: 36, 46: 33, 49: 30, 52: 29, 55: 27,
            57: 26, 60: 25}  # fmt: skip
"""Rate -> duration of the stage."""

OPTIMIZED_LADDER = Ladder(
    name="optimized",
    spec=OPTIMIZED,
    warm_up=(Stage(15.0, 50.0),),
    stages=tuple(Stage(float(rate), float(seconds)) for rate, seconds in _SECONDS.items()),
    figures=("ttftP50", "ttftP90", "outputTokensPerSecond"),
    arms=(
        Arm(
            "round robin",
            "round-robin",
            has_cpu=False,
            published={
                3.0: (None, None, 1_889),
                10.0: (None, None, 4_944),
                15.0: (None, None, 6_066),
                20.0: (0.9, 2.4, 4_555),
                22.0: (18.3, 46.1, 6_239),
                25.0: (0.4, 0.9, 6_350),
                30.0: (0.8, 4.9, 6_251),
                35.0: (21.0, 46.2, 6_544),
                40.0: (20.0, 37.9, 6_228),
                43.0: (25.7, 61.9, 6_860),
                46.0: (20.4, 66.8, 6_526),
                49.0: (66.9, 139.9, 6_956),
                52.0: (69.9, 143.8, 7_049),
                55.0: (78.3, 158.5, 6_402),
                57.0: (83.1, 153.3, 6_317),
                60.0: (88.1, 154.1, 6_764),
            },
        ),
        Arm(
            "affinity",
            "affinity",
            has_cpu=False,
            published={
                3.0: (None, None, 1_511),
                10.0: (None, None, 4_597),
                15.0: (None, None, 8_995),
                20.0: (0.4, 4.2, 6_656),
                22.0: (0.2, 1.4, 10_809),
                25.0: (0.2, 0.2, 10_452),
                30.0: (0.1, 0.2, 10_509),
                35.0: (0.1, 0.2, 12_290),
                40.0: (0.1, 0.3, 14_134),
                43.0: (0.2, 0.2, 13_522),
                46.0: (0.1, 0.2, 14_050),
                49.0: (0.9, 2.1, 14_941),
                52.0: (0.3, 1.3, 14_542),
                55.0: (0.1, 0.2, 14_607),
                57.0: (0.2, 19.9, 13_451),
                60.0: (0.2, 0.9, 13_528),
            },
        ),
    ),
)
"""llm-d guide optimized-baseline, benchmark-results/vllm-qwen3-32b-h100 at 53c5b20a, stages of benchmark-templates/guide.yaml."""

LADDERS = (TIERED_LADDER, OPTIMIZED_LADDER)
