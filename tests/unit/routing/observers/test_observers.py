"""Observers over changes of the configuration."""

from __future__ import annotations

from kvatlas.routing.observers.observers import Observers
from support.fleets import make_config, make_fleet


async def test_shadow_starts_changes_and_ends_with_the_configuration() -> None:
    async with make_fleet() as fleet:
        observers = Observers(make_config(), fleet)
        observers.start()
        assert observers.shadow is None

        observers.use(make_config(shadow={"policy": "latency"}))
        first = observers.shadow
        assert first is not None
        observers.use(make_config(shadow={"policy": "latency"}, weights={"queue": 3}))
        assert observers.shadow is first, "with the same settings it keeps what it learned"

        observers.use(make_config(shadow={"policy": "weights"}))
        assert observers.shadow is not None
        assert observers.shadow.name == "weights"
        observers.use(make_config())
        assert observers.shadow is None
        await observers.stop()
