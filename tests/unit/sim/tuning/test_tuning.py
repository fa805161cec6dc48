"""Weights are found, judged on requests the search never saw, and written as a file that loads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvatlas.api.cli import app
from kvatlas.api.scheduling.load import load_scheduled
from kvatlas.configs.schema import KVAtlasConfig, PluginConfig, WeightsConfig
from kvatlas.sim.errors import ReplayError
from kvatlas.sim.replay.comparison import Case, Plan
from kvatlas.sim.replay.policies import Policy
from kvatlas.sim.replay.simulation import Timing
from kvatlas.sim.tuning.bootstrap import paired_gain
from kvatlas.sim.tuning.pareto import front, write_pareto
from kvatlas.sim.tuning.search import Goal, Trial, Tuned, search
from kvatlas.sim.tuning.weights import file_with_weights, weights_of, with_weights
from support.traces import make_fleet, random_trace

BLIND = KVAtlasConfig(
    api_version="kvatlas/v1",
    weights=WeightsConfig(queue=0, kv_cache_utilization=0, gpu_prefix_cache=0, cpu_prefix_cache=0),
)
"""Every server is as good as any: chance decides."""

SHORT = """# mine
apiVersion: kvatlas/v1
kind: KVAtlasConfig
weights: {queue: 2, gpuPrefixCache: 3}
"""
PLUGINS = """
apiVersion: kvatlas/v1
kind: KVAtlasConfig
plugins:
- {type: queue-scorer}
- {type: prefix-cache-scorer, name: prefix, parameters: {tier: gpu}}
- {type: max-score-picker}
schedulingProfiles:
- plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix}
  - {pluginRef: max-score-picker}
"""


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        pytest.param(
            SHORT,
            {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "gpu-prefix-cache-scorer": 3, "cpu-prefix-cache-scorer": 1},
            {"queue-scorer": 0.5, "kv-cache-utilization-scorer": 4, "gpu-prefix-cache-scorer": 3, "cpu-prefix-cache-scorer": 0},
            id="weights",
        ),
        pytest.param(PLUGINS, {"queue-scorer": 2, "prefix": 1}, {"queue-scorer": 1.25, "prefix": 7}, id="plugins"),
    ],
)  # fmt: skip
def test_file_with_other_weights_loads_with_these(
    tmp_path: Path, text: str, before: dict[str, float], after: dict[str, float]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    config = load_scheduled(file).config
    assert weights_of(config) == before

    tuned, difference = file_with_weights(file, {name: float(weight) for name, weight in after.items()})

    file.write_text(tuned)
    loaded = load_scheduled(file).config
    assert weights_of(loaded) == after == weights_of(with_weights(config, after))
    assert any(line.startswith("+") and re.search(r"(0\.5|1\.25)$", line) for line in difference.splitlines())


def test_weights_without_a_place_are_refused() -> None:
    config = KVAtlasConfig(api_version="kvatlas/v1", plugins=(PluginConfig(type="queue-scorer"),))

    with pytest.raises(ReplayError, match="plugins without schedulingProfiles"):
        with_weights(config, {"queue-scorer": 1.0})


def make_plan(n_traces: int = 2) -> Plan:
    return Plan(
        tuple(random_trace(seed, n_requests=60) for seed in range(n_traces)),
        Timing(speed=4.0, scrape_s=0.0625),
    )


def test_search_finds_better_weights_within_the_guard_rails_and_the_same_again() -> None:
    case = Case(Policy("blind", BLIND), make_fleet(servers=3), 0.0)
    progress: list[None] = []

    tuned = search(
        make_plan(),
        case,
        Goal(max_p99=1.2, max_busiest=2.0),
        n_trials=12,
        progress=lambda: progress.append(None),
    )

    first, best = tuned.trials[0], tuned.best
    assert len(tuned.trials) == len(progress) == 12
    assert set(first.weights.values()) == {0.0}
    assert best.is_allowed
    assert best.figures["ttftMean"] < 0.9 * first.figures["ttftMean"]
    assert best.figures["ttftP99"] <= 1.2 * first.figures["ttftP99"]
    assert tuned.gain.low < tuned.gain.change < tuned.gain.high
    again = search(make_plan(), case, Goal(max_p99=1.2, max_busiest=2.0), n_trials=12)
    assert (again.best, again.gain) == (tuned.best, tuned.gain)


def test_weights_stay_when_guard_rails_allow_nothing_else() -> None:
    case = Case(Policy("blind", BLIND), make_fleet(servers=3), 0.0)

    tuned = search(make_plan(), case, Goal(max_p99=1.0, max_busiest=0.5), n_trials=4)

    assert all(not trial.is_allowed for trial in tuned.trials[1:])
    assert tuned.best is tuned.trials[0]
    assert (tuned.gain.low, tuned.gain.change, tuned.gain.high) == (0.0, 0.0, 0.0)


def test_policy_without_weights_cannot_be_tuned() -> None:
    with pytest.raises(ReplayError, match="policy 'random' has no weights to tune"):
        search(make_plan(), Case(Policy("random"), make_fleet(), 0.0), Goal(), n_trials=2)


def test_interval_of_a_paired_gain_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = Random(3)
    covered = 0
    for _ in range(60):
        before = [rng.expovariate(1.0) for _ in range(80)]
        after = [value * rng.uniform(0.6, 1.0) for value in before]
        gain = paired_gain(before, after, fmean, rng=rng)
        covered += gain.low <= -0.2 <= gain.high
    assert 52 <= covered < 60


@given(points=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_front_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    beaten = {
        one
        for one in points
        for other in points
        if other != one and other[0] <= one[0] and other[1] <= one[1]
    }

    assert front([(float(x), float(y)) for x, y in points]) == sorted(set(points) - beaten)


def test_pareto_plot_is_written(tmp_path: Path) -> None:
    trials = [
        Trial(
            {"queue-scorer": float(n)},
            {"ttftMean": 1.0 / (n + 1), "busiestServer": 1.0 + n},
            {"p99": n - 1.5},
        )
        for n in range(3)
    ]
    file = tmp_path / "new" / "pareto.svg"

    write_pareto(Tuned(trials, trials[1], paired_gain([1.0], [1.0], fmean, rng=Random(1))), Goal(), file)

    assert all(
        f"<!-- {label} -->" in file.read_text() for label in ("best", "as it was", "outside", "Pareto front")
    )


def run(*arguments: str) -> tuple[int, str, str]:
    trace = "agents:agents=6,turns=3,system_len=256,turn_len=80,output_len=20,starts_per_s=20"
    result = CliRunner().invoke(
        app, ["tune", trace, "--endpoints", "2", "--cpu-gb", "1", "--trials", "4", *arguments]
    )
    return result.exit_code, result.stdout, re.sub(r"\s+", " ", result.stderr)


def test_command_writes_the_tuned_file_and_says_what_is_gained(tmp_path: Path) -> None:
    file, out, plot = (tmp_path / name for name in ("a.yaml", "tuned.yaml", "pareto.svg"))
    file.write_text(SHORT)

    status, text, _ = run("--config", str(file), "--out", str(out), "--plot", str(plot))

    assert status == 0
    assert re.search(r"4 trials, \d within the guard rails\nttftMean +[\d.]+ -> [\d.]+\n", text)
    assert "on requests the search never saw, ttftMean changes by" in text
    assert plot.exists()
    status, text, _ = run("--config", str(file), "--json")
    report = json.loads(text)
    assert (status, report["trials"], report["objective"]) == (0, 4, "ttftMean")
    assert weights_of(load_scheduled(out).config) == report["weightsAfter"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ("--objective", "best"), "found objective 'best', want one of mean, p50, p90, p99", id="objective"
        ),
        pytest.param(("--config", "none.yaml"), "none.yaml: no such file", id="no_file"),
    ],
)
def test_wrong_use_is_said(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SHORT)

    status, _, text = run("--config", str(file), *arguments)

    assert status == 2
    assert message in text
