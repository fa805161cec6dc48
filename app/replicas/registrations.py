"""Instances that clients register with one replica, on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ...events.errors import KVAtlasError
from ...fleet.errors import ConfigRefusedError
from ...fleet.registered import Registration, Registry
from .configuration import SharedConfiguration

PREFIX = "instance/"
"""Beginning of the keys of registered ranks among what REST changes."""


class SharedRegistrations:
    """Registers an instance on all replicas, or on none. Implements `rest.registration.Registrations` and `configuration.Part`.

    Args:
        registry: of this replica.
        shared: agreement with the others.
    """

    def __init__(self, registry: Registry, shared: SharedConfiguration) -> None:
        self._registry, self._shared = registry, shared
        shared.part = self

    @property
    def models(self) -> frozenset[str]:
        """See `Registry.models`."""
        return self._registry.models

    def of(self, endpoint: str) -> Mapping[int, Registration]:
        """See `Registry.of`."""
        return self._registry.of(endpoint)

    async def register(self, registration: Registration) -> bool:
        """See `Registry.register`.

        Raises:
            ConfigRefusedError: a replica refuses it or is silent; it is registered on none.
        """
        if self._registry.of(registration.instance.endpoint).get(registration.addresses.rank) == registration:
            return False
        self._registry.check(registration)
        await self._shared.change({_key(registration): msgspec.to_builtins(registration)})
        return True

    async def unregister(self, tenant: str, name: str, rank: int | None) -> list[Registration]:
        """See `Registry.unregister`; raises ConfigRefusedError as `register`."""
        found = self._registry.find(tenant, name, rank)
        await self._shared.change({}, ended=[_key(each) for each in found])
        return found

    def check(self, values: Mapping[str, object]) -> None:
        """See `Part.check`."""
        for registration in self._missing(values):
            self._registry.check(registration)

    async def put(self, values: Mapping[str, object]) -> None:
        """See `Part.put`."""
        wanted = {_key(each): each for each in _registrations(values)}
        for known in self._registry.registrations():
            if wanted.get(_key(known)) != known:
                await self._registry.unregister(
                    known.instance.tenant, known.instance.name, known.addresses.rank
                )
        added: list[Registration] = []
        try:
            for registration in self._missing(values):
                await self._registry.register(registration)
                added.append(registration)
        except KVAtlasError as error:
            for each in added:
                await self._registry.unregister(each.instance.tenant, each.instance.name, each.addresses.rank)
            raise ConfigRefusedError(str(error)) from error

    def _missing(self, values: Mapping[str, object]) -> Iterator[Registration]:
        for each in _registrations(values):
            if self._registry.of(each.instance.endpoint).get(each.addresses.rank) != each:
                yield each


def _key(registration: Registration) -> str:
    instance = registration.instance
    return f"{PREFIX}{instance.tenant}/{instance.name}/{registration.addresses.rank}"


def _registrations(values: Mapping[str, object]) -> list[Registration]:
    """Return the registrations among changes.

    Raises:
        ConfigRefusedError: one is none.
    """
    try:
        return [
            msgspec.convert(value, Registration) for key, value in values.items() if key.startswith(PREFIX)
        ]
    except msgspec.ValidationError as error:
        raise ConfigRefusedError(f"a registered instance cannot be read: {error}") from None
