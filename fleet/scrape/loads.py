"""Last known load of every endpoint."""

from __future__ import annotations

from ...scorers.core.model import Load


class LoadTable:
    """Endpoint name -> load, valid for `stale_after_s` seconds. For one event loop; no locks."""

    def __init__(self, *, stale_after_s: float) -> None:
        self.stale_after_s = stale_after_s
        self._loads: dict[str, Load] = {}

    def get(self, name: str, now: float) -> Load | None:
        """Return the endpoint's load, None if it was never read or is too old at `now`, in monotonic seconds."""
        load = self._loads.get(name)
        return None if load is None or load.age_s(now) > self.stale_after_s else load

    def believed(self, now: float) -> dict[str, Load]:
        """Return loads by endpoint, without those that are too old at `now`. Cost: O(endpoints)."""
        oldest_s = self.stale_after_s
        return {name: load for name, load in self._loads.items() if now - load.updated_at <= oldest_s}

    def put(self, name: str, load: Load) -> None:
        """Store the newest load of an endpoint."""
        self._loads[name] = load

    def remove(self, name: str) -> None:
        """Forget an endpoint; unknown names are ignored."""
        self._loads.pop(name, None)
