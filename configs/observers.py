"""Sections about what looks on while requests are routed, and changes nothing of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .paths import PathText
from .section import Section
from .units import Duration


class CapacityCurveConfig(Section, frozen=True):
    """What CPU tiers of other sizes would find, from how far apart routed requests use the same blocks."""

    enabled: bool = True
    """Whether that is followed."""
    max_keys_per_endpoint: Annotated[int, Meta(ge=256, le=1_048_576)] = 8192
    """Blocks followed at most for each endpoint; one takes about 200 bytes."""
    half_life: Duration = Duration(3600.0)
    """Time after which a request counts half."""


class ShadowConfig(Section, frozen=True):
    """Another configuration whose profile decides on routed requests too, and routes none."""

    file: PathText = ""
    """Its file, of which weights, plugins and profiles count, watched for changes; empty: none."""
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Part of the requests on which it decides, chosen by chance."""
    max_cpu: Annotated[float, Meta(gt=0, le=1)] = 0.05
    """Part of a core that its decisions may take; past it requests are left out."""


class RecorderConfig(Section, frozen=True):
    """Routed requests, written as traces that `kvatlas replay` and `kvatlas tune` read."""

    folder: PathText = ""
    """Where the traces are kept, by this process alone; empty: nothing is recorded."""
    max_mebibytes: Annotated[int, Meta(ge=1, le=1_048_576)] = 1024
    """Size of all traces in the folder; the oldest go first."""
    max_files: Annotated[int, Meta(ge=2, le=1000)] = 8
    """Files that they are cut into."""
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Tokens that an id in a trace stands for."""
    key_file: PathText = ""
    """File with the secret that ids are made with; empty: made at each start, so that traces of two have no id in common."""
