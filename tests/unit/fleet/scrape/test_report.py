"""Load and facts read from recorded and generated bodies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.engines import ENGINES
from kvatlas.fleet.scrape.errors import ScrapeError
from kvatlas.fleet.scrape.report import FACTS_EVERY_S, EngineFacts, ReportReader
from kvatlas.scorers.core.model import Adapters, Load


def body(
    *,
    waiting: str = "0.0",
    running: str = "0.0",
    utilization: str = "vllm:kv_cache_usage_perc 0.0",
    more: str = "",
) -> bytes:
    """Return a small body of a vLLM server with one rank."""
    return f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {running}\n{utilization}\n{more}\n".encode()


def vllm_reader() -> ReportReader:
    return ReportReader({"vllm": ENGINES["vllm"]})


@pytest.mark.parametrize(
    ("recording", "facts"),
    [
        (
            "metrics_run1",
            EngineFacts(
                n_engines=1, block_size=32, num_gpu_blocks=96, rank_tokens=3072, process_start_s=1795167558.82
            ),
        ),
        (
            "metrics_run4",
            EngineFacts(
                n_engines=1,
                block_size=32,
                num_gpu_blocks=48,
                rank_tokens=1536,
                process_start_s=1795167854.17,
                offloads=True,
                finds_outside=True,
            ),
        ),
        (
            "metrics_run7_dp",
            EngineFacts(n_engines=2, block_size=32, num_gpu_blocks=192, rank_tokens=3072),
        ),
        (
            "metrics_run8",
            EngineFacts(
                n_engines=1,
                block_size=32,
                num_gpu_blocks=64,
                rank_tokens=2048,
                process_start_s=1795168561.93,
                offloads=True,
                finds_outside=True,
            ),
        ),
    ],
)
def test_recorded_bodies_of_idle_servers_are_read(golden: Path, recording: str, facts: EngineFacts) -> None:
    report = vllm_reader().read((golden / f"{recording}.txt").read_bytes(), now=7.0)

    adapters = None if recording == "metrics_run7_dp" else Adapters(recent=frozenset({"tinylora"}))
    assert report.load == Load(0, 0, 0.0, updated_at=7.0, adapters=adapters, gpu_tokens=facts.gpu_tokens)
    assert report.facts == facts


def test_recorded_values_are_read_where_they_are_not_zero(golden: Path) -> None:
    text = (golden / "metrics_run8.txt").read_text()
    for name, value in (
        ("num_requests_waiting", 3),
        ("num_requests_running", 4),
        ("kv_cache_usage_perc", 0.625),
    ):
        text = text.replace(
            f'vllm:{name}{{engine="0",model_name="tiny"}} 0.0', f'vllm:{name}{{engine="0"}} {value}'
        )

    load = vllm_reader().read(text.encode(), now=7.0).load

    assert (load.waiting, load.running, load.kv_utilization, load.updated_at) == (3, 4, 0.625, 7.0)


def test_ranks_are_summed_and_their_utilization_is_averaged(golden: Path) -> None:
    text = (golden / "metrics_run7_dp.txt").read_text()
    for rank, (waiting, running, used) in enumerate(((1, 2, 0.25), (3, 4, 0.75))):
        labels = f'{{engine="{rank}",model_name="tiny"}}'
        text = text.replace(
            f"vllm:num_requests_waiting{labels} 0.0", f"vllm:num_requests_waiting{labels} {waiting}"
        )
        text = text.replace(
            f"vllm:num_requests_running{labels} 0.0", f"vllm:num_requests_running{labels} {running}"
        )
        text = text.replace(
            f"vllm:kv_cache_usage_perc{labels} 0.0", f"vllm:kv_cache_usage_perc{labels} {used}"
        )

    report = vllm_reader().read(text.encode(), now=7.0)

    assert report.load == Load(waiting=4, running=6, kv_utilization=0.5, updated_at=7.0, gpu_tokens=6144)
    assert report.facts.gpu_blocks_per_engine == 96


@pytest.mark.parametrize(
    ("series", "utilization"),
    [
        pytest.param("vllm:kv_cache_usage_perc 0.5", 0.5, id="newer_name"),
        pytest.param("vllm:gpu_cache_usage_perc 0.25", 0.25, id="older_name"),
        pytest.param(
            "vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5", 0.5, id="newer_name_wins"
        ),
        pytest.param("vllm:kv_cache_usage_perc 1.0000001", 1.0, id="rounding_above_one"),
    ],
)
def test_utilization_is_read_under_both_names(series: str, utilization: float) -> None:
    assert vllm_reader().read(body(utilization=series), now=0.0).load.kv_utilization == utilization


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        pytest.param("", EngineFacts(n_engines=1), id="nothing_told"),
        pytest.param(
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0',
            EngineFacts(n_engines=1, block_size=16),
            id="blocks_not_known_yet",
        ),
        pytest.param(
            'vllm:cache_config_info{block_size="0",num_gpu_blocks="-5"} 1.0',
            EngineFacts(n_engines=1),
            id="impossible",
        ),
        pytest.param(
            f'vllm:cache_config_info{{num_gpu_blocks="{"9" * 5000}"}} 1.0',
            EngineFacts(n_engines=1),
            id="endless_number",
        ),
        pytest.param("process_start_time_seconds NaN", EngineFacts(n_engines=1), id="start_is_no_number"),
        pytest.param(
            "process_start_time_seconds 1.5e9",
            EngineFacts(n_engines=1, process_start_s=1.5e9),
            id="start_alone",
        ),
    ],
)
def test_facts_that_cannot_be_read_are_left_out(more: str, facts: EngineFacts) -> None:
    report = vllm_reader().read(body(more=more), now=0.0)

    assert report.facts == facts


CACHES = (
    'vllm:cache_config_info{num_gpu_blocks="10"} 1.0',
    'vllm:cache_config_info{num_gpu_blocks="10"} 1.0',
    'vllm:cache_config_info{num_gpu_blocks="20"} 1.0',
    "",
)


def test_facts_follow_a_changed_cache_description() -> None:
    reader = vllm_reader()

    blocks = [
        reader.read(body(more=more), now=step * FACTS_EVERY_S).facts.num_gpu_blocks
        for step, more in enumerate(CACHES)
    ]

    assert blocks == [10, 10, 20, None]


def test_facts_are_looked_for_once_in_a_while_and_after_each_connection() -> None:
    reader = vllm_reader()

    def blocks(cache: str, now: float) -> int | None:
        return reader.read(body(more=cache), now=now).facts.num_gpu_blocks

    assert blocks(CACHES[0], 7.0) == 10
    assert blocks(CACHES[2], 7.9) == 10
    assert blocks(CACHES[2], 8.0) == 20
    assert blocks(CACHES[0], 8.1) == 20
    reader.new_connection()
    assert blocks(CACHES[0], 8.2) == 10


@pytest.mark.parametrize(
    ("recording", "n_tokens"),
    [
        pytest.param("g1_gpu_sessions", 56 * 32, id="all_places_of_all_blocks"),
        pytest.param("dp_ranks", 96 * 32, id="two_ranks"),
        pytest.param("hy1_hybrid", 1260, id="groups_of_layers_need_blocks_of_their_own"),
    ],
)
def test_room_of_the_gpu_is_what_the_engine_says(golden: Path, recording: str, n_tokens: int) -> None:
    raw = (golden.parent / f"vllm-0.33.0/{recording}/metrics.txt").read_bytes()

    assert vllm_reader().read(raw, now=0.0).load.gpu_tokens == n_tokens


def test_blocks_of_one_rank_are_unknown_when_those_of_all_are() -> None:
    assert EngineFacts(n_engines=2).gpu_blocks_per_engine is None


@pytest.mark.parametrize(
    ("raw", "reason", "message"),
    [
        pytest.param(
            b"", "missing_series", "no series vllm:num_requests_waiting in the response", id="empty"
        ),
        pytest.param(b"<html>hello</html>", "missing_series", "is it an engine's /metrics?", id="web_page"),
        pytest.param(
            body(utilization=""),
            "missing_series",
            "no series vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
            id="no_utilization",
        ),
        pytest.param(
            body(waiting="NaN"), "malformed", "vllm:num_requests_waiting is nan, want 0 to", id="nan"
        ),
        pytest.param(
            body(running="-1"), "malformed", "vllm:num_requests_running is -1.0, want 0 to", id="negative"
        ),
        pytest.param(
            body(waiting="1e308"), "malformed", r"vllm:num_requests_waiting is 1e\+308, want", id="absurd"
        ),
        pytest.param(
            body(waiting="many"), "malformed", "value of vllm:num_requests_waiting is no number", id="word"
        ),
    ],
)
def test_body_without_a_load_is_an_error(raw: bytes, reason: str, message: str) -> None:
    with pytest.raises(ScrapeError, match=message) as raised:
        vllm_reader().read(raw, now=0.0)

    assert raised.value.reason == reason


NUMBERS = st.floats().map(repr) | st.sampled_from(("1", "1e400", "-0", "x", "", "1 2"))


@given(waiting=NUMBERS, running=NUMBERS, utilization=NUMBERS, label=st.text(max_size=20))
def test_any_values_are_a_sane_report_or_an_error(
    waiting: str, running: str, utilization: str, label: str
) -> None:
    raw = body(
        waiting=waiting,
        running=running,
        utilization=f"vllm:kv_cache_usage_perc {utilization}",
        more=f'vllm:cache_config_info{{block_size="{label}",num_gpu_blocks="{label}"}} 1',
    )
    try:
        report = vllm_reader().read(raw, now=0.0)
    except ScrapeError:
        return
    assert report.load.waiting >= 0
    assert report.load.running >= 0
    assert 0.0 <= report.load.kv_utilization <= 1.0


def lora_line(active: str, waiting: str, written_at: float, *, max_lora: str = "4") -> str:
    labels = f'max_lora="{max_lora}",running_lora_adapters="{active}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {written_at}"


def loaded(name: str, level: str, value: float = 1.0) -> str:
    return f'vllm:lora_adapter_loaded{{adapter_name="{name}",level="{level}"}} {value}'


@pytest.mark.parametrize(
    ("lines", "adapters"),
    [
        pytest.param([], None, id="engine_without_lora"),
        pytest.param([lora_line("", "", 1.0)], Adapters(), id="idle"),
        pytest.param(
            [lora_line("a, b", "c", 1.0)], Adapters(frozenset("ab"), frozenset("c")), id="names_by_commas"
        ),
        pytest.param(
            [lora_line("old", "", 5.0), lora_line("new", "", 9.0), lora_line("older", "", 1.0)],
            Adapters(frozenset({"new"}), recent=frozenset({"old", "older"})),
            id="newest_of_several",
        ),
        pytest.param(
            [
                lora_line(name, "", value, max_lora="2")
                for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0))
            ],
            Adapters(frozenset("c"), recent=frozenset("b")),
            id="displaced_when_there_is_no_room",
        ),
        pytest.param(
            [
                lora_line("a", "", 1.0),
                lora_line("b", "", 2.0),
                loaded("a", "gpu"),
                loaded("a", "cpu"),
                loaded("c", "cpu"),
            ],
            Adapters(frozenset("b"), on_gpu=frozenset("a"), in_memory=frozenset("c")),
            id="loaded_as_reported",
        ),
        pytest.param(
            [loaded("a", "gpu"), loaded("b", "gpu", 0.0), loaded("c", "disk"), "vllm:lora_adapter_loaded 1"],
            Adapters(on_gpu=frozenset("a")),
            id="loaded_alone",
        ),
        pytest.param(
            [lora_line("a", "", 1.0, max_lora="None")],
            Adapters(frozenset("a")),
            id="no_number",
        ),
    ],
)
def test_adapters_are_those_of_the_newest_line(lines: list[str], adapters: Adapters | None) -> None:
    assert vllm_reader().read(body(more="\n".join(lines)), now=1.0).load.adapters == adapters


def test_adapters_follow_the_lines_and_where_there_were_none_come_with_the_facts() -> None:
    reader = vllm_reader()
    seen: list[str | None] = []
    for now, more in (
        (7.0, lora_line("a", "", 1.0)),
        (7.1, lora_line("a", "", 2.0)),
        (7.2, lora_line("b", "", 3.0)),
        (7.3, ""),
        (7.4, lora_line("b", "", 4.0)),
        (8.0, lora_line("b", "", 4.0)),
    ):
        adapters = reader.read(body(more=more), now=now).load.adapters
        seen.append(None if adapters is None else "".join(adapters.active))

    assert seen == ["a", "a", "b", None, None, "b"]


def test_memory_behind_the_gpu_and_drafters_are_facts() -> None:
    labels = 'cpu_blocks_per_chunk="2",cpu_num_chunks="40",engine="0"'
    more = f'vllm:kv_offload_config_info{{{labels},tier="0:primary"}} 1.0\nvllm:kv_offload_config_info{{engine="0",tier="1:fs"}} 1.0\n'
    facts = vllm_reader().read(body(more=more + "vllm:spec_decode_num_drafts_total 0.0"), now=0.0).facts
    assert (facts.slow_blocks, facts.drafts) == (80, True)
    facts = vllm_reader().read(body(), now=0.0).facts
    assert (facts.slow_blocks, facts.drafts) == (None, False)
