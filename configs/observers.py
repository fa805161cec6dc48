"""Sections for observers of routing, which do not influence it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .paths import PathText
from .section import PolicyName, Section
from .units import Duration


class CapacityCurveConfig(Section, frozen=True):
    """Estimated hit rates of CPU tiers of other sizes, from the reuse distances of blocks in routed requests."""

    enabled: bool = True
    """Whether hit rates are estimated."""
    max_keys_per_endpoint: Annotated[int, Meta(ge=256, le=1_048_576)] = 8192
    """Most blocks to track per endpoint; one takes about 60 bytes."""
    half_life: Duration = Duration(3600.0)
    """Time after which a request has half its weight."""


class ShadowConfig(Section, frozen=True):
    """Second configuration whose profile also decides on routed requests, without effect on routing."""

    policy: PolicyName | None = None
    """Policy that decides; absent: the file."""
    file: PathText = ""
    """File of the second configuration, watched for changes; only policy, weights, plugins and profiles count; empty: none."""
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the requests on which it decides, chosen at random."""
    max_cpu: Annotated[float, Meta(gt=0, le=1)] = 0.05
    """Share of a CPU core for its decisions; requests above it are skipped."""


class RecorderConfig(Section, frozen=True):
    """Traces of routed requests for `kvatlas replay` and `kvatlas tune`."""

    folder: PathText = ""
    """Folder of the traces, for this process only; empty: nothing is recorded."""
    max_mebibytes: Annotated[int, Meta(ge=1, le=1_048_576)] = 1024
    """Size limit in MiB of all traces in the folder; the oldest are deleted first."""
    max_files: Annotated[int, Meta(ge=2, le=1000)] = 8
    """Number of files for the traces."""
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Tokens per id in a trace."""
    key_file: PathText = ""
    """File with the secret key of the ids; empty: a new key at each start, so that traces of two starts share no ids."""
