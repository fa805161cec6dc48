"""Workloads by name on the command line: a file, or a generator with its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import TraceError
from .agents import AgentsSpec, agents_trace
from .mooncake import read_trace
from .shared_prefix import SharedPrefixSpec, shared_prefix_trace
from .trace import Trace
from .weka import WekaSpec, weka_trace

T = TypeVar("T", bound=msgspec.Struct)


def named_traces(text: str, *, n_seeds: int = 1, limit: int | None = None) -> tuple[Trace, ...]:
    """Return the named trace once per seed: a file is the same for all seeds, a workload is generated for each.

    Args:
        text: path of a trace, or `GENERATOR:NAME=VALUE,...` with the names of the generator's specification.
        n_seeds: number of seeds, counted from 1.
        limit: maximum number of requests.
    Raises:
        TraceError: the file does not exist, or a setting is invalid.
    """
    name, _, settings = text.partition(":")
    seeds = range(1, n_seeds + 1)
    if name == "shared-prefix":
        shared = _spec(text, settings, SharedPrefixSpec)
        traces = [shared_prefix_trace(shared, seed=seed) for seed in seeds]
    elif name == "agents":
        agents = _spec(text, settings, AgentsSpec)
        traces = [agents_trace(agents, seed=seed) for seed in seeds]
    elif name == "weka":
        traces = [weka_trace(_spec(text, settings, WekaSpec))] * n_seeds
    else:
        traces = [read_trace(Path(text), limit=limit)] * n_seeds
    return tuple(replace(trace, requests=trace.requests[:limit]) for trace in traces)


def _spec(text: str, settings: str, spec: type[T]) -> T:
    given = (pair.partition("=") for pair in settings.split(",") if pair)
    pairs = {name: value for name, _, value in given}
    try:
        return msgspec.convert(pairs, spec, strict=False)
    except msgspec.ValidationError as error:
        settings = ", ".join(spec.__struct_fields__)
        raise TraceError(f"{text}: {error}; the settings are {settings}") from error
