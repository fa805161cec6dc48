"""Tokenization as Prometheus families, read when scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from .metrics import counter, gauge
from .tokenization.segment_cache import CacheStatistics
from .tokenization.service import Tokenization


def tokenization_families(tokenization: Tokenization) -> Iterator[Metric]:
    """Work of the encoder, its cache, the tokenizer's files, and the state of the engines that are asked."""
    encoder, counters, remote = tokenization.encoder, tokenization.pool.counters, tokenization.remote
    cache = encoder.cache.statistics() if encoder else CacheStatistics()
    segmented = gauge("tokenizer_segmented", "1 when texts are encoded in segments, 0 when whole.")
    if encoder is not None:
        segmented.add_metric([], encoder.is_segmented)
    reloads = counter("tokenizer_reloads", "Changes of the tokenizer's files.", "outcome")
    if tokenization.files is not None:
        reloads.add_metric(["used"], tokenization.files.n_reloads)
        reloads.add_metric(["failed"], tokenization.files.n_failures)
    yield from (segmented, reloads)
    for name, text, value in (
        ("cached_tokens", "Prompt tokens known from earlier prompts.", counters.cached_tokens),
        ("encoded_tokens", "Prompt tokens that had to be encoded.", counters.encoded_tokens),
        ("encode_seconds", "CPU time of encoding.", counters.encode_seconds),
        ("timeouts", "Prompts that were not encoded in time.", counters.timeouts),
        ("refusals", "Prompts not encoded, since too much text waited.", counters.refusals),
        ("cache_evictions", "Segments given up to stay within the cache's bound.", cache.evictions),
    ):
        family = counter(f"tokenizer_{name}", text)
        family.add_metric([], value)
        yield family
    for name, text, value in (
        ("tokenizer_cache_bytes", "Memory of segments with their ids.", cache.size_bytes),
        ("tokenizer_cache_segments", "Segments whose ids are known.", cache.segments),
        (
            "remote_tokenizer_servers_open",
            "Servers not asked for token ids because they failed.",
            remote.n_open if remote else 0,
        ),
        (
            "remote_tokenizer_cache_bytes",
            "Memory for token ids that engines told.",
            remote.cached_bytes if remote else 0,
        ),
    ):
        family_now = gauge(name, text)
        family_now.add_metric([], value)
        yield family_now
