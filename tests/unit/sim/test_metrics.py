from __future__ import annotations

from array import array
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.metrics import EngineCollector, ServerInfo
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.sequence import Lora
from kvatlas.sim.service_times import ServiceTimes
from support.sim_steps import serve_to_end

INFO = ServerInfo(model="tiny", gpu_blocks=64, max_loras=1, started_at=1000.0)


def make_scheduler() -> Scheduler:
    cache = BlockCache(block_size=32, gpu_blocks=64, cpu_blocks=128)
    return Scheduler(cache, times=ServiceTimes())


def scrape(scheduler: Scheduler, info: ServerInfo = INFO) -> dict[str, Metric]:
    text = EngineCollector(scheduler, info).render().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        s.value
        for f in families.values()
        for s in f.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    return found


def test_every_series_exists_in_a_real_server_with_the_same_labels(golden: Path) -> None:
    real: dict[str, set[frozenset[str]]] = {}
    for run in ("run8", "run1"):
        for family in text_string_to_metric_families((golden / f"metrics_{run}.txt").read_text()):
            for sample in family.samples:
                real.setdefault(sample.name, set()).add(frozenset(sample.labels))

    for family in scrape(make_scheduler()).values():
        for sample in family.samples:
            assert sample.name in real
            if sample.name == "vllm:cache_config_info":  # its label set varies by version
                assert set(sample.labels) <= next(iter(real[sample.name]))
            else:
                assert frozenset(sample.labels) in real[sample.name], sample.name


def test_load_and_usage_follow_the_running_requests() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(Request(name, array("I", range(64)), array("I", [1, 2, 3]), lora=Lora("x", 1)))
    scheduler.begin_step(0.0)
    scheduler.end_step()

    families = scrape(scheduler)

    assert value(families, "vllm:num_requests_running", engine="0", model_name="tiny") == 2
    assert value(families, "vllm:num_requests_waiting") == 0
    assert value(families, "vllm:kv_cache_usage_perc") == 3 / 63  # one block is shared
    assert value(families, "vllm:lora_requests_info", running_lora_adapters="x") == 1000.0


def test_hits_are_told_by_tier() -> None:
    scheduler = make_scheduler()
    for n_tokens in (97, 97):
        list(serve_to_end(scheduler, Request("a", array("I", range(n_tokens)), array("I", [1]))))
    scheduler.reset_cache()
    list(serve_to_end(scheduler, Request("b", array("I", range(70)), array("I", [1]))))

    families = scrape(scheduler)

    assert value(families, "vllm:prompt_tokens_cached_by_source_total", source="device") == 96
    assert value(families, "vllm:prompt_tokens_cached_by_source_total", source="host") == 64
    assert value(families, "vllm:prefix_cache_queries_total") == 264
    assert value(families, "vllm:external_prefix_cache_queries_total") == 168
    assert (
        value(families, "vllm:kv_offload_total_bytes_total", transfer_type="GPU_to_CPU") == 3 * 32 * 131_072
    )
    assert (
        value(families, "vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU") == 2 * 32 * 131_072
    )


def test_cache_config_says_block_size_and_pool() -> None:
    families = scrape(make_scheduler())

    assert value(families, "vllm:cache_config_info", block_size="32", num_gpu_blocks="64", engine="0") == 1
    assert value(families, "process_start_time_seconds") == 1000.0


def test_series_of_absent_parts_are_absent() -> None:
    plain = Scheduler(BlockCache(block_size=32, gpu_blocks=64), times=ServiceTimes())

    families = scrape(plain, ServerInfo("tiny", 64, 0, 0.0))

    assert not {"vllm:kv_offload_total_bytes", "vllm:lora_requests_info"} & families.keys()
