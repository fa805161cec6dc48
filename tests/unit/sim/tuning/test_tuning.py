"""Searches with known best settings, their evaluation on unseen requests, and the reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from kvatlas.configs.schema import KVAtlasConfig, PluginConfig, SchedulingProfileConfig, WeightsConfig
from kvatlas.configs.schema import ProfilePluginConfig as Reference
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.sim import hardware
from kvatlas.sim.errors import ReplayError
from kvatlas.sim.replay.comparison import Case, Plan
from kvatlas.sim.replay.policies import Policy
from kvatlas.sim.replay.simulation import Timing
from kvatlas.sim.traces.trace import Trace
from kvatlas.sim.tuning.bootstrap import Gain
from kvatlas.sim.tuning.cpu_sizes import CpuSizes
from kvatlas.sim.tuning.judgement import Judge, Judgement
from kvatlas.sim.tuning.pareto import front, write_pareto
from kvatlas.sim.tuning.search import Goal, Trial, Tuned, n_replayed, search
from kvatlas.sim.tuning.settings import Settings
from kvatlas.sim.tuning.weights import weights_of
from support.traces import BLOCK, make_fleet, make_trace, random_trace

BLIND = KVAtlasConfig(
    api_version="kvatlas/v1",
    weights=WeightsConfig(queue=0, kv_cache_utilization=0, gpu_prefix_cache=0, cpu_prefix_cache=0),
)
"""All servers have equal scores, so the choice is random."""

BLIND_TO_CPU = KVAtlasConfig(
    api_version="kvatlas/v1",
    plugins=(
        PluginConfig(type="tiered-prefix-cache-scorer", name="tiers", parameters={"credits": {"cpu": 0}}),
    ),
    scheduling_profiles=(SchedulingProfileConfig(plugins=(Reference(plugin_ref="tiers"),)),),
)
"""The blocks in CPU memory do not count."""

PROMPT_BLOCKS, TURNS = 10, 4
BLOCK_GIB = BLOCK * hardware.QWEN3_32B.kv_bytes_per_token / hardware.GIB


def conversations(n: int, *, turns: int = TURNS) -> Trace:
    """Make conversations that repeat their prompt in each round, so slowly that none waits for another."""
    prompts = [tuple(range(100 * each, 100 * each + PROMPT_BLOCKS + 1)) for each in range(n)]
    rounds = [prompt for _ in range(turns) for prompt in prompts]
    length = PROMPT_BLOCKS * BLOCK + 1
    return make_trace(*((20.0 * place, length, prompt) for place, prompt in enumerate(rounds)), output=1)


def make_plan(n_traces: int = 2) -> Plan:
    traces = tuple(random_trace(seed, n_requests=60) for seed in range(1, 1 + n_traces))
    return Plan(traces, Timing(speed=4.0, scrape_s=0.0625))


def test_search_finds_better_weights_within_the_guard_rails_and_the_same_again() -> None:
    case = Case(Policy("blind", BLIND), make_fleet(servers=3, cpu_blocks=30), 30 * BLOCK_GIB)
    goal = Goal(max_p99=1.2, max_busiest=2.0)
    progress: list[None] = []

    tuned = search(make_plan(), case, goal, n_trials=12, progress=lambda: progress.append(None))

    first, best, gain = tuned.trials[0], tuned.best, tuned.judgement.gain
    assert len(tuned.trials) == len(progress) == n_replayed(goal, 12) == 12
    assert set(first.settings.weights.values()) == {0.0}
    assert best.is_allowed
    assert best.figures["ttftMean"] < 0.9 * first.figures["ttftMean"]
    assert best.figures["ttftP99"] <= 1.2 * first.figures["ttftP99"]
    assert gain.low < gain.change < gain.high
    assert (tuned.curve, tuned.price_s, tuned.judgement.of_memory) == ([], 0.0, None)
    again = search(make_plan(), case, goal, n_trials=12)
    assert (again.best, again.judgement) == (tuned.best, tuned.judgement)


def test_search_finds_the_credit_that_keeps_every_conversation_where_it_is() -> None:
    """A GPU holds one conversation, the CPU tier all: with any credit for it, each is computed once, which is optimal."""
    fleet, gib = make_fleet(gpu_blocks=PROMPT_BLOCKS + 3, cpu_blocks=400), 400 * BLOCK_GIB
    plan, case = Plan((conversations(7),) * 2, Timing()), Case(Policy("a", BLIND_TO_CPU), fleet, gib)

    tuned = search(plan, case, Goal(max_p99=2.0, max_busiest=2.0), n_trials=6)

    before, after = tuned.judgement.before, tuned.judgement.after
    assert tuned.trials[0].settings == Settings({"tiers": 1.0}, {"tiers.cpu": 0.0}, gib)
    assert tuned.best.settings.credits["tiers.cpu"] > 0
    whole_prompts = PROMPT_BLOCKS * BLOCK / (PROMPT_BLOCKS * BLOCK + 1)
    assert after["hitRate"] == whole_prompts > before["hitRate"]
    assert tuned.judgement.gain.high < 0


@pytest.mark.parametrize(
    ("price_s", "blocks"),
    [
        pytest.param(None, 60, id="knee"),
        pytest.param(0.0, 60, id="memory_for_nothing"),
        pytest.param(1000.0, 0, id="memory_too_dear"),
    ],
)
def test_search_finds_the_cpu_tier_that_holds_all_there_is(price_s: float | None, blocks: int) -> None:
    """Six conversations take turns: an LRU cache finds all of them if all fit; a larger one finds no more."""
    sizes = CpuSizes(0.0, 160.01 * BLOCK_GIB, price_s)
    plan = Plan((conversations(6),) * 2, Timing())
    fleet = make_fleet(servers=1, gpu_blocks=PROMPT_BLOCKS + 3, block_size=BLOCK, cpu_blocks=0)
    goal = Goal(cpu_sizes=sizes)

    tuned = search(plan, Case(Policy("blind", BLIND), fleet, 0.0), goal, n_trials=4)

    found = hardware.blocks_in(tuned.best.settings.cpu_gib, block_size=BLOCK)
    assert found == blocks
    assert len(tuned.trials) == n_replayed(goal, 4) == 12
    assert [trial.settings.cpu_gib for trial in tuned.curve] == list(sizes.all)
    of_memory = tuned.judgement.of_memory
    assert (of_memory is None) == (blocks == 0)
    assert of_memory is None or of_memory.high < -0.3


def test_search_keeps_what_is_there_when_guard_rails_allow_nothing_else() -> None:
    case = Case(Policy("blind", BLIND), make_fleet(servers=3), 30 * BLOCK_GIB)

    tuned = search(make_plan(), case, Goal(max_p99=1.0, max_busiest=0.5), n_trials=4)

    assert all(not trial.is_allowed for trial in tuned.trials[1:])
    assert tuned.best is tuned.trials[0]
    assert tuned.judgement.gain == Gain(0.0, 0.0, 0.0)


def test_search_and_judge_see_different_requests() -> None:
    recording, generated = random_trace(1, n_requests=20), random_trace(2, n_requests=20)

    of_recording = Judge.of(Plan((recording,) * 3, Timing(), warm_up=4))
    of_generator = Judge.of(Plan((recording, generated), Timing(), warm_up=4))

    assert [trace.requests for trace in of_recording.searched.traces] == [recording.requests[:10]] * 2
    assert (of_recording.unseen.traces[-1], of_recording.unseen.warm_up) == (recording, 10)
    assert of_generator.searched.traces == (recording,)
    assert (of_generator.unseen.traces[-1], of_generator.unseen.warm_up) == (generated, 4)


def test_recording_without_a_request_to_count_is_refused() -> None:
    recording = random_trace(1, n_requests=9)

    with pytest.raises(
        ReplayError, match="random-1: the search has the first 4 of its 9 requests, and the warm-up takes 4"
    ):
        Judge.of(Plan((recording,) * 2, Timing(), warm_up=4))


@pytest.mark.parametrize(
    ("longest", "message"),
    [
        pytest.param((0, 3), "made: all 2 requests of the search would be refused: they have 200 tokens or more", id="search"),
        pytest.param((2, 4), "made: all 2 requests of the comparison afterwards would be refused", id="unseen"),
    ],
)  # fmt: skip
def test_search_without_requests_that_fit_is_refused(longest: tuple[int, int], message: str) -> None:
    """A server holds 39 blocks of 4 tokens."""
    lengths = [197 if longest[0] <= number < longest[1] else 8 for number in range(4)]
    recording = make_trace(*((float(n), length, tuple(range(50))) for n, length in enumerate(lengths)))
    case = Case(Policy("blind", BLIND), make_fleet(), 0.0)

    with pytest.raises(ReplayError, match=message):
        search(Plan((recording,) * 2, Timing()), case, Goal(), n_trials=3)


def test_search_without_a_served_request_is_refused() -> None:
    filters = KVAtlasConfig(
        api_version="kvatlas/v1",
        plugins=(
            PluginConfig(
                type="label-selector-filter", name="none", parameters={"matchLabels": {"no": "such"}}
            ),
            PluginConfig(type="queue-scorer"),
        ),
        scheduling_profiles=(
            SchedulingProfileConfig(
                plugins=(Reference(plugin_ref="none"), Reference(plugin_ref="queue-scorer"))
            ),
        ),
    )

    with pytest.raises(
        ReplayError, match="all requests of the search are refused with the original settings"
    ):
        search(make_plan(), Case(Policy("none", filters), make_fleet(), 0.0), Goal(), n_trials=3)


def test_price_of_memory_is_what_it_brings_on_average_unless_given() -> None:
    assert CpuSizes(20.0, 60.0).price(5.0, 3.0) == 0.05
    assert CpuSizes(20.0, 60.0).price(3.0, 5.0) == 0.0
    assert CpuSizes(20.0, 60.0, price_s=0.1).price(5.0, 3.0) == 0.1
    assert CpuSizes(20.0, 60.0).all == (20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0, 60.0)


@given(points=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_front_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    beaten = {
        one
        for one in points
        for other in points
        if other != one and other[0] <= one[0] and other[1] <= one[1]
    }

    assert front([(float(x), float(y)) for x, y in points]) == sorted(set(points) - beaten)


@pytest.mark.parametrize("sizes", [None, CpuSizes(0.0, 8.0)], ids=["one_size", "sizes"])
def test_pareto_plot_is_written(tmp_path: Path, sizes: CpuSizes | None) -> None:
    trials = [
        Trial(
            Settings({"queue-scorer": float(n)}, {}, float(n)),
            {"ttftMean": 1.0 / (n + 1), "busiestServer": 1.0 + n},
            {"p99": n - 1.5},
        )
        for n in range(3)
    ]
    judgement = Judgement(Gain(0.0, 0.0, 0.0), None, {}, {})
    file = tmp_path / "new" / "pareto.svg"

    write_pareto(Tuned(trials, trials[1], [], 0.0, judgement), Goal(cpu_sizes=sizes), file)

    text = file.read_text()
    assert all(f"<!-- {label} -->" in text for label in ("best", "original", "outside", "Pareto front"))
    assert ("<!-- CPU tier of a server, GiB -->" in text) is (sizes is not None)


def run(*arguments: str) -> tuple[int, str, str]:
    trace = "agents:agents=6,turns=3,system_len=256,turn_len=80,output_len=20,starts_per_s=20"
    result = CliRunner().invoke(
        app, ["tune", trace, "--endpoints", "2", "--trials", "4", *arguments], env={"COLUMNS": "120"}
    )
    return result.exit_code, result.stdout, re.sub(r"[\s│]+", " ", result.stderr)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text("apiVersion: kvatlas/v1\nkind: KVAtlasConfig\nweights: {queue: 2, gpuPrefixCache: 3}\n")
    return path


def test_command_writes_the_tuned_file_and_says_what_is_gained(tmp_path: Path, file: Path) -> None:
    out, plot = tmp_path / "new" / "tuned.yaml", tmp_path / "other" / "pareto.svg"
    arguments = ("--config", str(file), "--cpu-gb", "1")

    status, text, _ = run(*arguments, "--out", str(out), "--plot", str(plot))

    assert status == 0
    assert re.search(r"4 trials, \d within the guard rails\nttftMean +[\d.]+ -> [\d.]+\n", text)
    assert "on requests the search never saw, ttftMean changes by" in text
    assert plot.exists()
    status, text, _ = run(*arguments, "--json")
    report = json.loads(text)
    assert (status, report["trials"], report["objective"], report["curve"]) == (0, 4, "ttftMean", [])
    assert weights_of(load_scheduled(out).config) == report["weightsAfter"]


def test_command_shows_the_curve_of_cpu_tiers_and_the_one_chosen(file: Path) -> None:
    arguments = ("--config", str(file), "--cpu-gb", "0..4", "--gpu-blocks", "64", "--granularity", "4")

    status, text, _ = run(*arguments, "--gb-price", "1.5")

    rows = re.findall(r"^ +([\d.]+) +[\d.]+ +[\d.]+% *([-+][\d.]+)? *(<- chosen)? *$", text, re.MULTILINE)
    assert (status, [size for size, _gain, _mark in rows]) == (
        0,
        ["0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4"],
    )
    (chosen,) = [size for size, _gain, mark in rows if mark]
    assert "price of a GiB: 1.50 ms of ttftMean" in text
    report = json.loads(run(*arguments, "--gb-price", "1.5", "--json")[1])
    assert f"{report['cpuGibAfter']:g}" == chosen
    assert (report["priceSPerGib"], len(report["curve"]), report["trials"]) == (0.0015, 9, 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--out", "/proc/x/y"), "--out: /proc/x/y cannot be written: ", id="no_out"),
        pytest.param(("--out", "/proc"), "--out: /proc cannot be written: Is a directory", id="out_folder"),
        pytest.param(("--plot", "/proc/x.svg"), "--plot: /proc/x.svg cannot be written: ", id="no_plot"),
        pytest.param(("--warm-up", "100"), "--warm-up: found 100, want at most 17", id="all_warm_up"),
        pytest.param(("--objective", "best"), "found objective 'best', want one of mean, p50, p90, p99", id="objective"),
        pytest.param(("--config", "none.yaml"), "none.yaml: no such file", id="no_file"),
        pytest.param(("--cpu-gb", "9..9"), "found '9..9', want N or LOW..HIGH", id="empty_range"),
        pytest.param(("--cpu-gb", "1..2..3"), "found '1..2..3', want N or LOW..HIGH", id="three_sizes"),
        pytest.param(("--cpu-gb", "0..inf"), "found '0..inf', want numbers from 0 to 1000000, separated by '..'", id="no_end"),
    ],
)  # fmt: skip
def test_wrong_use_is_said(file: Path, arguments: tuple[str, ...], message: str) -> None:
    status, out, text = run("--config", str(file), *arguments)

    assert (status, out) == (2, "")
    assert message in text
