"""The servers of each model by the stages that they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ....fleet.endpoint import Endpoint
from ....scorers.core.decision import ENCODE, PREFILL
from ....scorers.filters.roles import DECODE_ROLES, ENCODE_ROLES, PREFILL_ROLES, ROLE_LABEL
from ..deployment import Deployment
from .traits import Traits
from .visits import Visit

DECODE = "decode"

ROLES: Mapping[str, frozenset[str | None]] = {
    DECODE: frozenset({*DECODE_ROLES, None}),
    PREFILL: frozenset(PREFILL_ROLES),
    ENCODE: frozenset(ENCODE_ROLES),
}
"""Stage -> roles that do it; without role a server decodes."""

KNOWN_ROLES = frozenset[str | None]().union(*ROLES.values())

MAX_NAMES = 3
"""Names of servers in one line of evidence."""


class Server(NamedTuple):
    """One server that takes requests.

    Attributes:
        name: its name.
        role: its label `llm-d.ai/role`, None without one.
        endpoint: in the fleet; None if only a file is checked.
        visit: what answered there; None if it was not visited.
    """

    name: str
    role: str | None
    endpoint: Endpoint | None = None
    visit: Visit | None = None

    def does(self, stage: str) -> bool:
        """Return whether it does a stage."""
        return self.role in ROLES[stage]

    @property
    def traits(self) -> Traits:
        """Return what it says of itself."""
        return self.visit.traits if self.visit is not None else Traits()


class Pool(NamedTuple):
    """The servers of one model.

    Attributes:
        title: how findings name the model.
        servers: by name.
    """

    title: str
    servers: tuple[Server, ...]

    def of(self, stage: str) -> list[Server]:
        """Return the servers that do a stage."""
        return [each for each in self.servers if each.does(stage)]


def pools(deployment: Deployment) -> Iterator[Pool]:
    """Yield the servers of each configured model, as its `endpointLabels` select them."""
    servers = [(server, labels) for server, labels in _servers(deployment)]
    models = deployment.config.served_models
    for model in models:
        wanted = model.endpoint_labels.items()
        name = model.names[0] if model.names else ""
        title = f"model {name}" if len(models) > 1 else "the fleet"
        yield Pool(title, tuple(server for server, labels in servers if wanted <= labels.items()))


def _servers(deployment: Deployment) -> Iterator[tuple[Server, Mapping[str, str]]]:
    if deployment.fleet is None:
        for written in deployment.config.endpoints.static:
            yield Server(written.name, written.labels.get(ROLE_LABEL)), written.labels
    for _, endpoint in deployment.endpoints:
        if endpoint.address is not None:
            visit = deployment.visits.get(endpoint.name)
            role = endpoint.labels.get(ROLE_LABEL)
            yield Server(endpoint.name, role, endpoint, visit), endpoint.labels


def named(servers: Iterable[Server]) -> str:
    """Return the names of servers for people, the first ones of many."""
    names = [each.name for each in servers]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
