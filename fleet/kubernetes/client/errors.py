"""Errors of the Kubernetes client.

KVAtlasError
└── KubernetesError
    ├── AccessError         address or credentials of the API server are missing or unusable
    ├── RequestFailedError  a request failed
    └── MalformedError      a response violates the protocol
"""

from __future__ import annotations

from dataclasses import dataclass

from ....events.errors import KVAtlasError

ADVICE = {
    401: "the token or certificate is not accepted",
    403: "give the ServiceAccount a Role that may get, list and watch this",
    404: "the cluster does not serve this kind; install its CRD",
}
"""Remedy for an error response, by HTTP status."""

OF_PROXY = "it is no response of an API server; look at the load balancer or proxy before it"
"""Remedy for a 404 that is none of the API server."""

LACKS = {403: "forbidden", 404: "not_installed"}
"""HTTP status of a list or watch -> what the cluster lacks for it."""

UNANSWERED = frozenset({"unreachable", "timeout"})
"""Failures without a response."""


class KubernetesError(KVAtlasError):
    """Base of errors between the process and the Kubernetes API server."""


class AccessError(KubernetesError):
    """Address or credentials of the API server are missing or unusable."""


class MalformedError(KubernetesError):
    """A response violates the protocol."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a request failed.

    Attributes:
        reason: counter label, one of `unreachable`, `timeout`, `http_status`, `malformed`, `too_large`, `expired`,
            `cut` or `short`.
        message: text for logs.
        status: HTTP status, also of a Status inside a watch; None without response.
        retry_after_s: delay that the server asks for; None if it asks for none.
        of_proxy: whether the response is of something before the API server, so that it tells nothing of the cluster.
    """

    reason: str
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    of_proxy: bool = False

    @property
    def is_outage(self) -> bool:
        """Whether there was no response of the API server, or one of a server that is overloaded or out of order."""
        if self.of_proxy:
            return True
        if self.status is None:
            return self.reason in ("unreachable", "timeout", "cut")
        return self.status == 429 or self.status >= 500

    @property
    def lack(self) -> str | None:
        """What the cluster lacks for the request: `forbidden` for a right, `not_installed` for a kind; None for neither."""
        return LACKS.get(self.status) if self.status is not None and not self.of_proxy else None


class RequestFailedError(KubernetesError):
    """A request failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
