"""Series that the reference picker serves on `/metrics`, and what says the same here.

Names and older names as recorded in `tests/golden/picker/plugins/series-names.txt`; kvatlas serves none of them under
these names.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "llm_d_epp_"

OLDER: Mapping[str, str] = {
    "inference_extension_info": "info",
    "inference_extension_plugin_duration_seconds": "plugin_duration_seconds",
    "inference_extension_prefix_indexer_hit_bytes": "prefix_indexer_hit_bytes",
    "inference_extension_prefix_indexer_hit_ratio": "prefix_indexer_hit_ratio",
    "inference_extension_prefix_indexer_size": "prefix_indexer_size",
    "inference_extension_scheduler_attempts_total": "scheduler_attempts_total",
    "inference_extension_scheduler_e2e_duration_seconds": "scheduler_e2e_duration_seconds",
    "inference_objective_inference_request_metric": "inference_request_metric",
    "inference_objective_input_tokens": "request_input_tokens",
    "inference_objective_normalized_time_per_output_token_seconds": "request_ntpot_seconds",
    "inference_objective_output_tokens": "request_output_tokens",
    "inference_objective_prompt_cached_tokens": "request_cached_tokens",
    "inference_objective_request_duration_seconds": "request_duration_seconds",
    "inference_objective_request_error_total": "request_error_total",
    "inference_objective_request_predicted_ttft_seconds": "request_predicted_ttft_seconds",
    "inference_objective_request_sizes": "request_size_bytes",
    "inference_objective_request_total": "request_total",
    "inference_objective_request_ttft_seconds": "request_ttft_seconds",
    "inference_objective_response_sizes": "response_size_bytes",
    "inference_objective_running_requests": "request_running",
    "inference_pool_average_kv_cache_utilization": "average_kv_cache_utilization",
    "inference_pool_average_queue_size": "average_queue_size",
    "inference_pool_average_running_requests": "average_running_requests",
    "inference_pool_per_pod_queue_size": "per_endpoint_queue_size",
    "inference_pool_ready_pods": "ready_endpoints",
    "llm_d_inference_scheduler_datalayer_extract_errors_total": "datalayer_extract_errors_total",
    "llm_d_inference_scheduler_datalayer_poll_errors_total": "datalayer_poll_errors_total",
    "llm_d_inference_scheduler_disagg_decision_total": "disagg_decision_total",
}
"""Older name, which the reference serves too -> the newer one, without its prefix."""

_OF_ENGINES = "the engines' own series, by endpoint"

HERE: Mapping[str, str] = {
    "average_kv_cache_utilization": _OF_ENGINES,
    "average_queue_size": _OF_ENGINES,
    "average_running_requests": _OF_ENGINES,
    "datalayer_extract_errors_total": "`kvatlas_scrape_errors_total`",
    "datalayer_poll_errors_total": "`kvatlas_scrape_errors_total`",
    "disagg_decision_total": "`kvatlas_placements_total`",
    "encoder_cache_hit_ratio": "none",
    "encoder_cache_hits_total": "none",
    "encoder_cache_queries_total": "none",
    "inference_request_metric": "none",
    "inflight_requests": "`kvatlas_in_flight_requests`",
    "inflight_tokens": "`kvatlas_in_flight_tokens`",
    "info": "none",
    "per_endpoint_queue_size": _OF_ENGINES,
    "plugin_duration_seconds": "`kvatlas_decision_seconds`, for all plugins together",
    "prefix_indexer_hit_bytes": "`kvatlas_usable_prefix_tokens_total`, in tokens",
    "prefix_indexer_hit_ratio": "`kvatlas_usable_prefix_tokens_total` by `kvatlas_prompt_tokens_total`",
    "prefix_indexer_size": "`kvatlas_index_residencies`",
    "ready_endpoints": "`kvatlas_kubernetes_objects`",
    "request_cached_tokens": "`kvatlas_response_cached_tokens_total`",
    "request_duration_seconds": "none",
    "request_error_total": "`kvatlas_refusals_total`, `kvatlas_responses_total`",
    "request_input_tokens": "`kvatlas_response_prompt_tokens_total`",
    "request_ntpot_seconds": "none",
    "request_output_tokens": "`kvatlas_response_output_tokens_total`",
    "request_predicted_ttft_seconds": "`kvatlas_latency_log_error`",
    "request_processing_duration_seconds": "`kvatlas_decision_seconds`",
    "request_running": "`kvatlas_open_streams`",
    "request_size_bytes": "none",
    "request_streaming_itl_seconds": "none",
    "request_streaming_tpot_seconds": "none",
    "request_total": "`kvatlas_requests_total`",
    "request_ttft_seconds": "`kvatlas_response_first_byte_seconds`",
    "response_processing_duration_seconds": "none",
    "response_size_bytes": "none",
    "scheduler_attempts_total": "`kvatlas_picks_total`, `kvatlas_refusals_total`",
    "scheduler_e2e_duration_seconds": "`kvatlas_decision_seconds`",
    "std_dev_kv_cache_utilization": _OF_ENGINES,
    "std_dev_queue_size": _OF_ENGINES,
    "std_dev_running_requests": _OF_ENGINES,
}
"""Series of the reference without its prefix -> series of kvatlas that say the same."""
