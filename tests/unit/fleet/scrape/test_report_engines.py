"""Reports of other engines than vLLM, and detection of the engine."""

from __future__ import annotations

import pytest

from kvatlas.configs.engines import ENGINES
from kvatlas.fleet.scrape.errors import ScrapeError
from kvatlas.fleet.scrape.report import EngineFacts, ReportReader
from kvatlas.scorers.core.model import Load

VLLM_BODY = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
OTHER_BODIES = {
    "sglang": """
sglang:num_queue_reqs{tp_rank="0"} 2.0
sglang:num_running_reqs{tp_rank="0"} 3.0
sglang:token_usage{tp_rank="0"} 0.5
sglang:page_size{tp_rank="0"} 64.0
sglang:num_pages{tp_rank="0"} 100.0
""",
    "trtllm-serve": """
trtllm_num_requests_waiting{model_name="m"} 2.0
trtllm_num_requests_running{model_name="m"} 3.0
trtllm_kv_cache_utilization{model_name="m"} 0.5
trtllm_kv_cache_tokens_per_block{model_name="m"} 64.0
trtllm_kv_cache_max_blocks{model_name="m"} 100.0
""",
    "triton-tensorrt-llm": """
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="m",request_type="context",version="1"} 9
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 3
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 50
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 100
""",
}


@pytest.mark.parametrize("engine", OTHER_BODIES)
@pytest.mark.parametrize("candidates", ["alone", "all"])
def test_other_engines_are_read_under_their_names_named_or_found_out(engine: str, candidates: str) -> None:
    reader = ReportReader(ENGINES if candidates == "all" else {engine: ENGINES[engine]})

    report = reader.read(OTHER_BODIES[engine].encode(), now=1.0)

    assert report.load == Load(waiting=2, running=3, kv_utilization=0.5, updated_at=1.0, gpu_tokens=6400)
    assert report.facts == EngineFacts(n_engines=1, block_size=64, num_gpu_blocks=100)
    assert reader.engine == engine


def test_sizes_are_read_from_the_labels_of_older_sglang() -> None:
    old = b"""sglang:num_queue_reqs 2\nsglang:num_running_reqs 3\nsglang:token_usage 0.5
sglang:cache_config_info{page_size="64",num_pages="100"} 1\n"""

    report = ReportReader(ENGINES).read(old, now=1.0)

    assert report.facts == EngineFacts(n_engines=1, block_size=64, num_gpu_blocks=100)


def test_gauges_of_ranks_are_summed_for_blocks_and_agree_on_the_block_size() -> None:
    ranks = "".join(
        f'sglang:{name}{{dp_rank="{rank}"}} {value}\n'
        for name, value in (
            ("num_queue_reqs", 1),
            ("num_running_reqs", 2),
            ("token_usage", 0.5),
            ("page_size", 64),
            ("num_pages", 100),
        )
        for rank in (0, 1)
    )

    report = ReportReader(ENGINES).read(ranks.encode(), now=1.0)

    assert report.load == Load(waiting=2, running=4, kv_utilization=0.5, updated_at=1.0, gpu_tokens=12800)
    assert report.facts == EngineFacts(n_engines=2, block_size=64, num_gpu_blocks=200)
    assert report.facts.gpu_blocks_per_engine == 100


def test_engine_that_tells_only_its_queue_runs_nothing_and_uses_nothing() -> None:
    reader = ReportReader(ENGINES)

    report = reader.read(
        b'nv_inference_pending_request_count{model="m"} 4\nnv_inference_exec_count 7e9\n', now=1.0
    )

    assert (report.load, reader.engine) == (
        Load(waiting=4, running=0, kv_utilization=0.0, updated_at=1.0),
        "triton",
    )


def test_engine_is_found_out_again_after_a_new_connection() -> None:
    reader = ReportReader(ENGINES)
    reader.read(VLLM_BODY, now=1.0)
    with pytest.raises(ScrapeError, match="no series vllm:num_requests_waiting in"):
        reader.read(OTHER_BODIES["sglang"].encode(), now=2.0)

    reader.new_connection()

    assert reader.read(OTHER_BODIES["sglang"].encode(), now=3.0).load.running == 3
    assert reader.engine == "sglang"


def test_answer_of_no_known_engine_names_what_was_looked_for() -> None:
    with pytest.raises(
        ScrapeError, match="no series vllm:num_requests_waiting, sglang:num_queue_reqs, "
    ) as raised:
        ReportReader(ENGINES).read(b"up 1\n", now=1.0)

    assert raised.value.reason == "missing_series"


def test_names_are_all_that_is_read_of_the_engine() -> None:
    reader = ReportReader(ENGINES)
    before = reader.names
    reader.read(VLLM_BODY, now=1.0)

    assert before == []
    assert reader.names == [
        "process_start_time_seconds",
        "vllm:cache_config_info",
        "vllm:external_prefix_cache_hits_total",
        "vllm:gpu_cache_usage_perc",
        "vllm:kv_cache_usage_perc",
        "vllm:kv_offload_config_info",
        "vllm:kv_offload_total_bytes_total",
        "vllm:lora_adapter_loaded",
        "vllm:lora_requests_info",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:spec_decode_num_drafts_total",
    ]
