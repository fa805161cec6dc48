"""What a server says of its KV cache and of its transfers, from its metrics and `/server_info`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ....fleet.scrape.errors import ScrapeError
from ....fleet.scrape.exposition import Exposition

MAX_TEXT = 256
"""Longest value that is kept; engines write numbers and short names."""

SERVED = ("vllm:num_requests_running", "sglang:num_running_reqs")
"""Series with the label `model_name`."""

CACHE = ("vllm:cache_config_info", "sglang:cache_config_info")
NIXL = "vllm:nixl_config_info"
"""Series of vLLM with the hash that two NIXL connectors compare before a transfer. Source: vLLM pull request 52999."""

CONNECTORS: Mapping[str, bytes] = {
    "NIXL": b"\nvllm:nixl_",
    "offloading": b"\nvllm:kv_offload_",
    "LMCache": b"\nlmcache:",
}
"""KV connector of vLLM -> start of a line that its metrics have. The other connectors write no series of their own."""

_SIZE_LABELS = ("block_size", "page_size")


@dataclass(frozen=True, slots=True)
class Traits:
    """What one server says of itself; None or empty if it does not.

    Attributes:
        models: served names.
        block_size: tokens per block.
        cache_dtype: type of KV values.
        hash_algorithm: of block hashes.
        connectors: KV connectors whose series are there; None if the engine would show none in any case.
        kv_role: kv_producer, kv_consumer or kv_both.
        nixl_hash: two servers with different ones exchange no blocks over NIXL.
        mode: SGLang's disaggregation mode: prefill, decode or null.
        backend: SGLang's transfer backend.
    """

    models: frozenset[str] = frozenset()
    block_size: str | None = None
    cache_dtype: str | None = None
    hash_algorithm: str | None = None
    connectors: frozenset[str] | None = None
    kv_role: str | None = None
    nixl_hash: str | None = None
    mode: str | None = None
    backend: str | None = None


def read_metrics(body: bytes) -> Traits:
    """Return the traits in a `/metrics` body, as far as it shows them; malformed lines count as absent. Cost: O(bytes)."""
    page = Exposition(body)
    cache, nixl = _labels(page, CACHE), _labels(page, (NIXL,))
    text = b"\n" + body
    found = frozenset(name for name, start in CONNECTORS.items() if start in text)
    return Traits(
        models=frozenset(_values(_labels(page, SERVED), "model_name")),
        block_size=_joined(value for label in _SIZE_LABELS for value in _values(cache, label)),
        cache_dtype=_joined(_values(cache, "cache_dtype")),
        hash_algorithm=_joined(_values(cache, "prefix_caching_hash_algo")),
        connectors=found if b"\nvllm:" in text else None,
        kv_role=_joined(_values(nixl, "kv_role")),
        nixl_hash=_joined(_values(nixl, "compatibility_hash")),
    )


class _ServerInfo(msgspec.Struct, frozen=True):
    """The part of SGLang's `/server_info` that concerns transfers. Source: SGLang 0.5.23."""

    disaggregation_mode: str | None = None
    disaggregation_transfer_backend: str | None = None
    kv_cache_dtype: str | None = None
    page_size: int | None = None


_decode = msgspec.json.Decoder(_ServerInfo).decode


def with_server_info(traits: Traits, body: bytes) -> Traits:
    """Return the traits with those of SGLang's `/server_info`; as they are if it is unreadable."""
    try:
        info = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return traits
    mode = info.disaggregation_mode
    return Traits(
        models=traits.models,
        block_size=traits.block_size if info.page_size is None else str(info.page_size),
        cache_dtype=_short(info.kv_cache_dtype),
        mode=_short(mode),
        # the default is there without disaggregation too
        backend=_short(info.disaggregation_transfer_backend) if mode not in (None, "null") else None,
    )


def _labels(page: Exposition, names: Iterable[str]) -> list[dict[str, str]]:
    try:
        return [sample.labels() for name in names for sample in page.samples(name)]
    except ScrapeError:
        return []


def _values(labels: Iterable[Mapping[str, str]], name: str) -> list[str]:
    return sorted({short for each in labels if (short := _short(each.get(name))) is not None})


def _joined(values: Iterable[str]) -> str | None:
    """Return the values of all ranks as one text; they differ only where ranks do."""
    return ", ".join(dict.fromkeys(values)) or None


def _short(value: str | None) -> str | None:
    return value[:MAX_TEXT] if value not in (None, "", "None") else None
