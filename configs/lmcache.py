"""Section for LMCache, `lmcache`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .section import Section
from .units import Duration


class LmcacheDirectoryConfig(Section, frozen=True):
    """Key directory of LMCache's coordinator, asked for prompts after they were routed."""

    url: str = ""
    """Its URL, `http://HOST:PORT`; empty: none is asked."""
    chunk_tokens: Annotated[int, Meta(ge=16, le=65536)] = 256
    """Tokens of one chunk, as LMCache is configured."""
    world_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Ranks over which a model is spread."""
    ttl: Duration = Duration(30.0)
    """Time for which a prompt is not asked for again."""
    timeout: Duration = Duration(1.0)
    """Timeout of one question."""


class LmcacheConfig(Section, frozen=True):
    """Batches of cache events that LMCache's MP servers post to a coordinator, at `/events` of REST."""

    accept_events: bool = False
    """Whether batches are taken."""
    instances: dict[str, tuple[str, ...]] = {}
    """LMCache instance -> names of the endpoints that it serves; absent: the endpoint of the same name."""
    directory: LmcacheDirectoryConfig = LmcacheDirectoryConfig()
    """Key directory of a coordinator, as a source for tiers with `scope: shared`."""
