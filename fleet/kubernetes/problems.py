"""Why the cluster cannot be followed, or no leader elected, in words for `/readyz` and the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .client.election import Elector
from .client.errors import Failure
from .discovery import Discovery
from .pool_objects import GROUPS

OPTIONAL = ("inferenceobjectives", "inferencemodelrewrites")
"""Kinds without which requests are routed; their objects change priorities and model names."""

LEASES = "leases"
_VERBS = {LEASES: "get, create, update"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of object that cannot be read or written.

    Attributes:
        kind: plural name.
        path: path of the requests that fail.
        failure: of the last request.
        is_known: whether objects of the kind were read before; they stay in force.
    """

    kind: str
    path: str
    failure: Failure
    is_known: bool

    @property
    def is_severe(self) -> bool:
        """Whether something that is configured does not work: the kind is needed, or requests for it are refused."""
        return self.kind not in OPTIONAL or self.failure.status in (401, 403)

    @property
    def is_expected(self) -> bool:
        """Whether the cluster never had the kind, and need not."""
        return self.kind in OPTIONAL and self.failure.status == 404 and not self.is_known

    @property
    def evidence(self) -> str:
        """The kind, and the last failure."""
        state = "not up to date" if self.is_known else "not known"
        return f"{self.kind}: {state}: {self.failure.message}"

    @property
    def remedy(self) -> str:
        """Right, CRD or connection to look after."""
        match self.failure.status:
            case 401:
                return "the pod's ServiceAccount token, or the user of the kubeconfig"
            case 403:
                verbs = _VERBS.get(self.kind, "list, watch")
                return (
                    f"in the Role: apiGroups: [{self._group!r}], resources: [{self.kind}], verbs: [{verbs}]"
                )
            case 404:
                return f"the CRD of {self.kind} in {self._group}, or --pool-group and --pool-namespace"
            case _:
                return "the API server, and the way to it: network policies, DNS, proxies, certificates"

    @property
    def _group(self) -> str:
        return self.path.split("/")[2] if self.path.startswith("/apis/") else ""


def discovery_problems(discovery: Discovery) -> Iterator[Problem]:
    """Yield the kinds that are not followed."""
    followers = dict(discovery.followers())
    for kind, failure in discovery.problems():
        follower = followers.get(kind)  # a kind that was not found yet has none
        path = f"/apis/{GROUPS[0]}/" if follower is None else follower.path
        yield Problem(kind, path, failure, follower is not None and follower.copy.n_lists > 0)


def election_problem(elector: Elector) -> Problem | None:
    """Return why the Lease cannot be used, None if it can."""
    if elector.problem is None:
        return None
    return Problem(LEASES, elector.path, elector.problem, elector.leads)
