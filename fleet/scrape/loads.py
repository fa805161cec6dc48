"""Last known load of every endpoint."""

from __future__ import annotations

from collections.abc import Callable

from ...scorers.core.model import Load


class LoadTable:
    """Endpoint name -> load, valid for `stale_after_s` seconds. For one event loop; no locks."""

    def __init__(self, *, stale_after_s: float) -> None:
        self.stale_after_s = stale_after_s
        self._loads: dict[str, Load] = {}
        self._listeners: list[Callable[[str, Load], None]] = []

    def listen(self, on_load: Callable[[str, Load], None]) -> None:
        """Call `on_load` with the name and load of an endpoint whenever there is a new one."""
        self._listeners.append(on_load)

    def last(self, name: str) -> Load | None:
        """Return the endpoint's newest load however old it is, None if it was never read."""
        return self._loads.get(name)

    def get(self, name: str, now: float) -> Load | None:
        """Return the endpoint's load, None if it was never read or is too old at `now`, in monotonic seconds."""
        load = self._loads.get(name)
        return None if load is None or load.age_s(now) > self.stale_after_s else load

    def put(self, name: str, load: Load) -> None:
        """Store the newest load of an endpoint."""
        self._loads[name] = load
        for listener in self._listeners:
            listener(name, load)

    def remove(self, name: str) -> None:
        """Forget an endpoint; unknown names are ignored."""
        self._loads.pop(name, None)
