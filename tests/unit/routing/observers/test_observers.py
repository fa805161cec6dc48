"""Observers over changes of the configuration."""

from __future__ import annotations

from kvatlas.routing.observers.observers import Observers
from kvatlas.routing.observers.shadow.shadow import Shadow
from support.fleets import make_config, make_fleet


def after(observers: Observers, **sections: object) -> Shadow | None:
    """Return the shadow after a change of the configuration."""
    observers.use(make_config(**sections))
    return observers.shadow


async def test_shadow_starts_changes_and_ends_with_the_configuration() -> None:
    async with make_fleet() as fleet:
        observers = Observers(make_config(), fleet)
        observers.start()
        none = observers.shadow
        first = after(observers, shadow={"policy": "latency"})
        same = after(observers, shadow={"policy": "latency"}, weights={"queue": 3})
        other = after(observers, shadow={"policy": "weights"})
        ended = after(observers)
        await observers.stop()

    assert none is ended is None
    assert first is not None
    assert other is not None
    assert same is first, "with the same settings it keeps what it learned"
    assert (first.name, other.name) == ("latency", "weights")
