"""Base of the sections of configuration files, and common types of keys."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every section: camelCase keys, unknown keys are errors."""


MAX_NAME_CHARS = 512
"""Longest name of a model. vLLM uses paths as names; a longer one in a request belongs to no model."""

ModelName = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Port = Annotated[int, Meta(ge=1, le=65535)]

MAX_WEIGHT = 1_000_000_000
"""Highest weight. Sums of such weights are far from overflowing, and parts of a millionth still count beside one."""

Weight = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]
SignedWeight = Annotated[float, Meta(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]
PolicyName = Literal["weights", "latency"]
"""Policies that need no plugins of their own."""

MAX_BLOCKS = 1_000_000_000
"""Most blocks in a key. The index takes no number of more than 64 bits."""

BlockCount = Annotated[int, Meta(ge=1, le=MAX_BLOCKS)]

MAX_HELD_BYTES = 10**15
"""Highest limit of bytes in memory. Sums of such limits fit into the 64 bits of the native servers."""

HeldBytes = Annotated[int, Meta(ge=1, le=MAX_HELD_BYTES)]
