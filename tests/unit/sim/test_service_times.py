from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvatlas.sim import hardware
from kvatlas.sim.service_times import Run, ServiceTimes, StepWork

TIMES = ServiceTimes(
    prefill_s_per_token=1.0, step_s=100.0, weights_s=5.0, attention_s_per_pair=0.1, context_s_per_token=0.01
)


def work(*, prefill: tuple[tuple[int, int], ...] = (), contexts: tuple[int, ...] = ()) -> StepWork:
    made = StepWork()
    for n_tokens, end in prefill:
        made.add_prefill(n_tokens, end=end)
    for n_context in contexts:
        made.add_decode(n_context=n_context)
    return made


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        pytest.param(work(), 0.0, id="nothing"),
        pytest.param(work(contexts=(50, 150)), 100 + 5 + 2.0, id="decode_reads_weights_and_contexts"),
        pytest.param(work(prefill=((3, 3),)), 100 + 5 + 0.3, id="few_prompt_tokens_hide_behind_the_weights"),
        pytest.param(work(prefill=((10, 10),)), 100 + 10 + 4.5, id="many_hide_the_weights"),
        pytest.param(work(prefill=((10, 30),)), 100 + 10 + 24.5, id="a_later_chunk_looks_back_further"),
        pytest.param(work(prefill=((10, 10),), contexts=(100,)), 100 + 10 + 4.5 + 1.0, id="mixed"),
    ],
)
def test_step_takes_the_sum_of_its_parts(step: StepWork, seconds: float) -> None:
    assert TIMES.of_step(step) == pytest.approx(seconds)


@given(cuts=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_attention_of_a_prompt_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    ends = [sum(cuts[: place + 1]) for place in range(len(cuts))]
    pieces = sum(work(prefill=((n, end),)).n_pairs for n, end in zip(cuts, ends, strict=True))

    assert pieces == work(prefill=((sum(cuts), sum(cuts)),)).n_pairs


@given(
    first_s=st.floats(1e-4, 10),
    growth_s=st.just(0.0) | st.floats(1e-9, 1),
    n_steps=st.integers(1, 1000),
    part=st.floats(0, 1.2),
)
@example(first_s=0.1, growth_s=0.0, n_steps=3, part=1.0)
def test_run_counts_the_steps_that_end_in_time(
    first_s: float, growth_s: float, n_steps: int, part: float
) -> None:
    run = Run(first_s, growth_s, n_steps)
    seconds = run.duration(n_steps) * part

    done = run.steps_within(seconds)

    assert 0 <= done <= n_steps
    assert run.duration(done) <= seconds or done == 0
    assert done == n_steps or run.duration(done + 1) > seconds


def test_run_of_no_duration_ends_at_once() -> None:
    assert Run(0.0).steps_within(0.0) == 1


def test_constants_give_the_shape_of_the_model_and_a_plausible_engine() -> None:
    times = hardware.service_times()

    assert hardware.QWEN3_32B.kv_bytes_per_token == 256 * 1024
    assert 1 / times.prefill_s_per_token == pytest.approx(hardware.PREFILL_TOKENS_PER_S)
    assert times.weights_s == pytest.approx(65.6e9 / (2 * 3.35e12 * 0.8))
    assert times.load_s_per_token == times.store_s_per_token == pytest.approx(262_144 / (2 * 50e9))
    assert times.copy_speed_both_ways * 2 * 50e9 == pytest.approx(83.4e9)
    assert hardware.blocks_in(100) == 25_600


def test_twice_the_gpus_halve_every_cost_but_the_overhead() -> None:
    two, four = hardware.service_times(), hardware.service_times(tensor_parallel=4)

    for name in (
        "prefill_s_per_token",
        "weights_s",
        "attention_s_per_pair",
        "context_s_per_token",
        "load_s_per_token",
        "store_s_per_token",
    ):
        assert getattr(four, name) == pytest.approx(getattr(two, name) / 2)
    assert (four.step_s, four.fetch_s_per_token) == (two.step_s, two.fetch_s_per_token)
