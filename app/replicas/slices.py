"""Where the other replicas listen, by the EndpointSlices of their Service."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from ...fleet.kubernetes.client.access import Access
from ...fleet.kubernetes.client.api_server import ApiServer
from ...fleet.kubernetes.client.backoff import Timing
from ...fleet.kubernetes.client.follower import Collection, Follower
from ...fleet.kubernetes.client.list_watch import ListWatch
from ...fleet.kubernetes.client.wire import ObjectMeta, Wire
from .discovery import OnAddresses, tcp_address
from .mesh import Discovery

_FAMILIES = ("IPv4", "IPv6")
"""Address types in the order of preference; only one is used, so that no replica is found twice."""


class SliceEndpoint(Wire, frozen=True):
    """One pod of a Service."""

    addresses: tuple[str, ...] = ()
    """Its IP addresses, of which the first counts."""


class EndpointSlice(Wire, frozen=True):
    """`discovery.k8s.io/v1`, with the fields that are needed."""

    metadata: ObjectMeta
    """Name."""
    address_type: str = "IPv4"
    """Type of all its addresses."""
    endpoints: tuple[SliceEndpoint, ...] | None = None
    """Pods, also those that are not ready: replicas talk to each other before they are."""


def followed(access: Access, namespace: str, service: str, port: int) -> Discovery:
    """Return the discovery by the EndpointSlices of a Service; they are watched.

    Args:
        access: to the API server.
        namespace: of the Service.
        service: its name.
        port: of each pod.
    """
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    collection = Collection(path, label_selector=f"kubernetes.io/service-name={service}")

    async def discover(on_addresses: OnAddresses) -> None:
        copy = ListWatch(EndpointSlice, timing=Timing(), rng=random.random)

        def changed() -> None:
            if copy.synced:
                on_addresses(_addresses(copy.objects, port))

        server = ApiServer(access, clock=time.monotonic)
        follower = Follower(server, collection, copy, on_change=changed, clock=time.monotonic)
        await server.start()
        try:
            await follower.run()
        finally:
            await server.stop()

    return discover


def _addresses(slices: Mapping[str, EndpointSlice], port: int) -> frozenset[str]:
    for family in _FAMILIES:
        hosts = {
            endpoint.addresses[0]
            for each in slices.values()
            if each.address_type == family
            for endpoint in each.endpoints or ()
            if endpoint.addresses
        }
        if hosts:
            return frozenset(tcp_address(host, port) for host in hosts)
    return frozenset()
