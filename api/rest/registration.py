"""`/register`, `/unregister` and `/workers` of the standard contract.

Source: Mooncake RFC #1403; `/workers`, 201 and 409 as Dynamo's standalone indexer answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from fastapi import APIRouter, Response

from ...configs.address import ZmqAddress
from ...configs.endpoints import RankAddresses
from ...configs.networks import Network, allows
from ...events.errors import SocketLimitError, SubscriptionError
from ...events.stream import Trust
from ...events.subscription import Subscription
from ...fleet.endpoint import Endpoint
from ...fleet.errors import TooManyRegisteredError
from ...fleet.fleet import Fleet
from ...fleet.instance import Instance
from ...fleet.registered import STORES, Registration
from .errors import BadRequestError
from .metrics import RestMetrics
from .models import (
    ErrorOut,
    Listener,
    ListenerStatus,
    Registered,
    RegisterRequest,
    Unregistered,
    UnregisterRequest,
    Worker,
)


class Registrations(Protocol):
    """The registered instances, of this process or of several; see `fleet.registered.Registry`."""

    @property
    def models(self) -> frozenset[str]:
        """Models of registered instances."""
        ...

    def of(self, endpoint: str) -> Mapping[int, Registration]:
        """Return the registrations of an endpoint by rank."""
        ...

    async def register(self, registration: Registration) -> bool:
        """Follow a publisher; return False if the same registration exists."""
        ...

    async def unregister(self, tenant: str, name: str, rank: int | None) -> list[Registration]:
        """Remove a rank of an instance, or every rank if `rank` is None; return the removed registrations."""
        ...


def registration_routes(
    fleet: Fleet,
    registry: Registrations,
    *,
    allowed: Sequence[Network],
    model_names: frozenset[str],
    metrics: RestMetrics,
) -> APIRouter:
    """Return the routes of `/register`, `/unregister` and `/workers`.

    Args:
        fleet: has the instances.
        registry: registers them.
        allowed: networks of the addresses that may be registered; none: all addresses.
        model_names: names of the configured model; empty for any.
        metrics: counts refusals.
    """
    router = APIRouter(tags=["standard"])

    @router.post(
        "/register",
        summary="Follow an instance's events",
        status_code=201,
        responses={
            200: {"model": Registered, "description": "it was registered in the same words before"},
            400: {"model": ErrorOut, "description": "an address that cannot be used"},
            409: {
                "model": ErrorOut,
                "description": "the instance or rank is there already, as something else",
            },
        },
    )
    async def register(request: RegisterRequest, response: Response) -> Registered:
        """Add one data-parallel rank of an instance; its history is fetched if it has a replay address.

        Registered instances are matched and shown, but get no requests: they have no serving address.
        """
        try:
            created = await registry.register(_registration(request, allowed, model_names))
        except TooManyRegisteredError:
            metrics.refused("too_many_registered")
            raise
        except SocketLimitError:
            raise
        except SubscriptionError as error:
            raise BadRequestError(str(error)) from None
        response.status_code = 201 if created else 200
        return Registered(status="registered successfully", instance_id=request.instance_id)

    @router.post(
        "/unregister",
        summary="Stop following an instance",
        responses={404: {"model": ErrorOut, "description": "nothing of that name was registered"}},
    )
    async def unregister(request: UnregisterRequest) -> Unregistered:
        """Remove one rank, or all; nothing of it remains."""
        removed = await registry.unregister(request.tenant_id, str(request.instance_id), request.dp_rank)
        return Unregistered(
            status="unregistered successfully",
            removed_instances=[f"{r.instance.name}|{r.instance.tenant}|{r.addresses.rank}" for r in removed],
        )

    @router.get("/workers", summary="Instances and how they are followed")
    async def workers() -> list[Worker]:
        """Return every instance, configured and registered."""
        return [_worker(endpoint, fleet, registry) for endpoint in fleet]

    return router


def _registration(
    request: RegisterRequest, allowed: Sequence[Network], model_names: frozenset[str]
) -> Registration:
    is_fleets_model = not model_names or request.model in model_names
    return Registration(
        instance=Instance(
            name=str(request.instance_id),
            tenant=request.tenant_id,
            model=request.model,
            salt=request.additional_salt,
            fills_fleet=(request.type or "").lower() in STORES and is_fleets_model,
        ),
        given_id=request.instance_id,
        addresses=RankAddresses(
            rank=request.dp_rank,
            events=_tcp_address("endpoint", request.endpoint, allowed),
            replay=_tcp_address("replay_endpoint", request.replay_endpoint, allowed)
            if request.replay_endpoint
            else None,
        ),
        block_size=request.block_size,
        engine=request.type,
        lora=request.lora_name,
    )


def _tcp_address(field: str, text: str, allowed: Sequence[Network]) -> str:
    """Return an address that kvatlas may connect to for a client; files of this machine are not for clients.

    Raises:
        BadRequestError: no tcp address, or none in the allowed networks.
    """
    tcp = None
    with suppress(ValueError):  # whose words advise an ipc path, too
        tcp = ZmqAddress.parse(text).tcp
    if tcp is None:
        found = "an ipc path" if text.startswith("ipc://") else repr(text)
        raise BadRequestError(f"{field}: found {found}, expected tcp://HOST:PORT such as tcp://10.0.0.1:5557")
    if allowed and not allows(allowed, tcp.host):
        raise BadRequestError(
            f"{field}: {tcp.host} is no IP address in the networks of rest.registerAllow: "
            f"{', '.join(map(str, allowed))}"
        )
    return text


def _worker(endpoint: Endpoint, fleet: Fleet, registry: Registrations) -> Worker:
    registrations = registry.of(endpoint.name)
    first = next(iter(registrations.values()), None)
    listeners = {
        str(rank.number): _listener(rank.subscription)
        for rank in endpoint.ranks
        if rank.subscription is not None
    }
    known = (ledger.block_size for ledger in fleet.atlas.ledgers(endpoint.name))
    return Worker(
        instance_id=first.given_id if first else endpoint.instance.name,
        tenant_id=endpoint.instance.tenant,
        status=_worst([listener.status for listener in listeners.values()]),
        registered=first is not None,
        type=first.engine if first else None,
        model_name=endpoint.instance.model,
        lora_name=first.lora if first else None,
        block_size=next((size for size in known if size), first.block_size if first else None),
        endpoints={rank: listener.endpoint for rank, listener in listeners.items()},
        listeners=listeners,
    )


def _listener(subscription: Subscription) -> Listener:
    return Listener(
        endpoint=subscription.events,
        replay_endpoint=subscription.replay,
        status=_status(subscription.trust),
        trust=subscription.trust.value,
    )


def _status(trust: Trust) -> ListenerStatus:
    match trust:
        case Trust.DARK:
            return "pending"
        case Trust.STALE:
            return "failed"
        case _:
            return "active"


def _worst(statuses: list[ListenerStatus]) -> ListenerStatus:
    """Return the worst status, in Dynamo's order: failed, pending, active; paused if there is none."""
    order: list[ListenerStatus] = ["failed", "pending", "active", "paused"]
    return min([*statuses, "paused"], key=order.index)
