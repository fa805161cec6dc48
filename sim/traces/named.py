"""Workloads by name on the command line: a file, or a generator with its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import TraceError
from ..limits import MAX_IDS, MAX_REQUESTS, MAX_SPAN_S, MAX_TOKENS
from .agents import AgentsSpec, agents_trace
from .mooncake import read_trace
from .shared_prefix import SharedPrefixSpec, shared_prefix_trace
from .trace import Trace
from .weka import WekaSpec, weka_trace

T = TypeVar("T", bound=msgspec.Struct)


def named_traces(text: str, *, n_seeds: int = 1, limit: int | None = None) -> tuple[Trace, ...]:
    """Return the named trace once per seed: a file is the same for all seeds, a workload is generated for each.

    Times of a file count from its first arrival.

    Args:
        text: path of a trace, or `GENERATOR:NAME=VALUE,...` with the names of the generator's specification.
        n_seeds: number of seeds, counted from 1.
        limit: maximum number of requests.
    Raises:
        TraceError: the file does not exist, a setting is invalid, or a size is beyond `limits`.
    """
    name, _, settings = text.partition(":")
    seeds = range(1, n_seeds + 1)
    if name == "shared-prefix":
        shared = _spec(text, settings, SharedPrefixSpec)
        _check_size(text, shared, n_seeds)
        traces = [shared_prefix_trace(shared, seed=seed) for seed in seeds]
    elif name == "agents":
        agents = _spec(text, settings, AgentsSpec)
        _check_size(text, agents, n_seeds)
        traces = [agents_trace(agents, seed=seed) for seed in seeds]
    elif name == "weka":
        traces = [weka_trace(_spec(text, settings, WekaSpec))] * n_seeds
    else:
        traces = [_from_first(read_trace(Path(text), limit=limit))] * n_seeds
    distinct = {id(trace): replace(trace, requests=trace.requests[:limit]) for trace in traces}
    for trace in distinct.values():
        _check(text, trace)
    return tuple(distinct[id(trace)] for trace in traces)


def _from_first(trace: Trace) -> Trace:
    """Let times count from the first arrival, whatever clock the recorder had; pauses after other requests stay."""
    first_s = min((each.at_s for each in trace.requests if each.after is None), default=0.0)
    requests = [
        each if each.after is not None else replace(each, at_s=each.at_s - first_s) for each in trace.requests
    ]
    return replace(trace, requests=requests)


def _check_size(text: str, spec: SharedPrefixSpec | AgentsSpec, n_seeds: int) -> None:
    for name, number, limit in (
        ("requests", spec.n_requests, MAX_REQUESTS),
        ("block ids", spec.n_ids, MAX_IDS),
    ):
        if number * n_seeds > limit:
            raise TraceError(
                f"{text}: would have {number * n_seeds} {name} for {n_seeds} seed(s), want at most {limit}, whatever --limit is"
            )


def _check(text: str, trace: Trace) -> None:
    if trace.block_size > MAX_TOKENS:
        raise TraceError(f"{text}: found {trace.block_size} tokens per block id, want at most {MAX_TOKENS}")
    for number, request in enumerate(trace.requests):
        if request.n_tokens > MAX_TOKENS:
            raise TraceError(
                f"{text}: request {number} has {request.n_tokens} tokens with its output, want at most {MAX_TOKENS}"
            )
        if request.at_s > MAX_SPAN_S:
            raise TraceError(
                f"{text}: request {number} comes after {request.at_s:g} s, want at most {MAX_SPAN_S:.0f} (366 days)"
            )


def _spec(text: str, settings: str, spec: type[T]) -> T:
    given = (pair.partition("=") for pair in settings.split(",") if pair)
    pairs = {name: value for name, _, value in given}
    try:
        return msgspec.convert(pairs, spec, strict=False)
    except msgspec.ValidationError as error:
        settings = ", ".join(spec.__struct_fields__)
        raise TraceError(f"{text}: {error}; the settings are {settings}") from error
