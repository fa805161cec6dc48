"""Prometheus metrics of tokenization, read on each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from ..fleet.families import counter, gauge
from ..tokenization.service import Tokenization


def tokenization_families(tokenizations: Sequence[Tokenization]) -> Iterator[Metric]:
    """Yield the metrics of encoders, caches, tokenizer files and remote engines.

    Args:
        tokenizations: of all models; their counts are added.
    """
    encoders = [each.encoder for each in tokenizations if each.encoder is not None]
    counters = [each.pool.counters for each in tokenizations]
    caches = [encoder.cache.statistics() for encoder in encoders]
    remotes = [each.remote for each in tokenizations if each.remote is not None]
    files = [each.files for each in tokenizations if each.files is not None]
    segmented = gauge(
        "tokenizer_segmented", "1 when texts are encoded in segments, 0 when whole for some model."
    )
    if encoders:
        segmented.add_metric([], all(encoder.is_segmented for encoder in encoders))
    native = gauge(
        "tokenizer_native", "1 when most new text needs no library, 0 when all does for some model."
    )
    if encoders:
        native.add_metric([], all(encoder.is_native for encoder in encoders))
    reloads = counter("tokenizer_reloads", "Changes of the tokenizer's files.", "outcome")
    if files:
        reloads.add_metric(["used"], sum(each.n_reloads for each in files))
        reloads.add_metric(["failed"], sum(each.n_failures for each in files))
    yield from (segmented, native, reloads)
    for name, text, value in (
        (
            "cached_tokens",
            "Prompt tokens known from earlier prompts.",
            sum(each.cached_tokens for each in counters),
        ),
        (
            "encoded_tokens",
            "Prompt tokens that had to be encoded.",
            sum(each.encoded_tokens for each in counters),
        ),
        ("encode_seconds", "CPU time of encoding.", sum(each.encode_seconds for each in counters)),
        ("timeouts", "Prompts that were not encoded in time.", sum(each.timeouts for each in counters)),
        (
            "refusals",
            "Prompts not encoded, since too much text waited.",
            sum(each.refusals for each in counters),
        ),
        (
            "slices_dropped",
            "Slices of text not encoded, since nobody waited for them any more.",
            sum(each.pool.dropped_slices for each in tokenizations),
        ),
        (
            "cache_evictions",
            "Segments given up to stay within the cache's bound.",
            sum(each.evictions for each in caches),
        ),
    ):
        family = counter(f"tokenizer_{name}", text)
        family.add_metric([], value)
        yield family
    for name, text, value in (
        (
            "tokenizer_queued_chars",
            "Characters that wait for a thread or are being encoded.",
            sum(each.pool.queued_chars for each in tokenizations),
        ),
        (
            "tokenizer_cache_bytes",
            "Memory of segments with their ids.",
            sum(each.size_bytes for each in caches),
        ),
        ("tokenizer_cache_segments", "Segments whose ids are known.", sum(each.segments for each in caches)),
        (
            "remote_tokenizer_servers_open",
            "Servers not asked for token ids because they failed.",
            sum(each.n_open for each in remotes),
        ),
        (
            "remote_tokenizer_cache_bytes",
            "Memory for token ids that engines told.",
            sum(each.cached_bytes for each in remotes),
        ),
    ):
        family_now = gauge(name, text)
        family_now.add_metric([], value)
        yield family_now
