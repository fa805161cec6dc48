"""Section for LMCache, `lmcache`."""

from __future__ import annotations

from .section import Section


class LmcacheConfig(Section, frozen=True):
    """Batches of cache events that LMCache's MP servers post to a coordinator, at `/events` of REST."""

    accept_events: bool = False
    """Whether batches are taken."""
    instances: dict[str, tuple[str, ...]] = {}
    """LMCache instance -> names of the endpoints that it serves; absent: the endpoint of the same name."""
