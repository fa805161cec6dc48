"""Comparison of the servers that compute prompts with those that take them over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from ..check import Finding, State
from .pools import Server, named
from .seeds import seed_misfits
from .traits import Traits


class Trait(NamedTuple):
    """Something that has to be the same on both servers of a transfer.

    Attributes:
        name: for people.
        of: its value, None if unknown.
        state: rating of a difference.
        remedy: what makes it the same.
    """

    name: str
    of: Callable[[Traits], str | None]
    state: State
    remedy: str


TRAITS = (
    Trait(
        "tokens per block",
        attrgetter("block_size"),
        State.WARN,  # some connectors convert, for some attention backends
        "one --block-size (SGLang: --page-size) for prefill and decode servers of a model",
    ),
    Trait(
        "type of KV values",
        attrgetter("cache_dtype"),
        State.FAIL,
        "one --kv-cache-dtype for prefill and decode servers of a model",
    ),
    Trait(
        "compatibility hash of NIXL",
        attrgetter("nixl_hash"),
        State.FAIL,
        "one version of vLLM, one model with one dtype, and one attention backend; then a restart",
    ),
    Trait(
        "transfer backend",
        attrgetter("backend"),
        State.FAIL,
        "one --disaggregation-transfer-backend for prefill and decode servers",
    ),
    Trait(
        "algorithm of block hashes",
        attrgetter("hash_algorithm"),
        State.WARN,  # only connectors that find blocks by hash need it
        "one --prefix-caching-hash-algo for all servers that share a store",
    ),
)


def misfits(title: str, prefills: Sequence[Server], decodes: Sequence[Server]) -> Iterator[Finding]:
    """Yield what keeps prompts from being handed over, or that nothing does. Cost: O(servers)."""
    found = [*_differences(prefills, decodes), *_connectors(prefills, decodes), *_modes(prefills, decodes)]
    found += seed_misfits(prefills, decodes)
    mute = {each.name: each for each in (*prefills, *decodes) if each.traits == Traits()}
    if mute:
        found.append(Finding(State.UNKNOWN, f"{named(mute.values())}: metrics could not be read"))
    yield from found
    if not found:
        yield Finding(State.OK, f"{title}: {len(prefills)} prefill and {len(decodes)} decode servers fit")


def _differences(prefills: Sequence[Server], decodes: Sequence[Server]) -> Iterator[Finding]:
    servers = {each.name: each for each in (*prefills, *decodes)}
    for trait in TRAITS:
        by_value: defaultdict[str, list[Server]] = defaultdict(list)
        for server in servers.values():
            value = trait.of(server.traits)
            if value is not None:
                by_value[value].append(server)
        sides = [{trait.of(each.traits) for each in side} - {None} for side in (prefills, decodes)]
        if len(by_value) > 1 and all(sides):
            shown = "; ".join(f"{value} on {named(found)}" for value, found in by_value.items())
            yield Finding(trait.state, f"{trait.name}: {shown}", trait.remedy)


def _connectors(prefills: Sequence[Server], decodes: Sequence[Server]) -> Iterator[Finding]:
    """Compare the KV connectors that the series of vLLM show."""
    sides: list[defaultdict[frozenset[str], list[Server]]] = [defaultdict(list), defaultdict(list)]
    for side, servers in zip(sides, (prefills, decodes), strict=True):
        for server in servers:
            if server.traits.connectors is not None:
                side[server.traits.connectors].append(server)
    for here, computing in sides[0].items():
        for there, taking in sides[1].items():
            if here & there:
                continue
            shown = f"{named(computing)}: {_shown(here)}; {named(taking)}: {_shown(there)}"
            if here and there:
                yield Finding(State.FAIL, f"no KV connector of both: {shown}", _SAME_CONNECTOR)
            elif here or there:
                yield Finding(State.WARN, f"KV connectors differ: {shown}", _SAME_CONNECTOR)
            else:
                yield Finding(State.UNKNOWN, f"KV connectors cannot be compared: {shown}")


_SAME_CONNECTOR = (
    "vllm serve --kv-transfer-config with one kv_connector on both, the one of the sidecar's --kv-connector"
)


def _shown(connectors: frozenset[str]) -> str:
    return ", ".join(sorted(connectors)) if connectors else "no series of a connector in /metrics"


def _modes(prefills: Sequence[Server], decodes: Sequence[Server]) -> Iterator[Finding]:
    """Find servers that are started for the other stage, or for none."""
    for servers, wrong, mode in ((prefills, "kv_consumer", "prefill"), (decodes, "kv_producer", "decode")):
        for server in servers:
            traits = server.traits
            if traits.kv_role == wrong:
                yield Finding(
                    State.FAIL,
                    f"{server.name}: runs as {wrong}, and its role is {server.role}",
                    "vllm serve --kv-transfer-config: kv_role kv_producer to prefill, kv_consumer to decode, kv_both for both",
                )
            if traits.mode is not None and traits.mode != mode:
                yield Finding(
                    State.FAIL,
                    f"{server.name}: runs with disaggregation mode {traits.mode}, and its role is {server.role}",
                    f"sglang serve --disaggregation-mode {mode}",
                )
