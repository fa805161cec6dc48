"""Errors of talking to the Kubernetes API server.

KVAtlasError
└── KubernetesError
    ├── AccessError         how to reach the API server cannot be found out, or what is found cannot be used
    ├── RequestFailedError  one request gave no answer that helps
    └── MalformedError      an answer is not what the protocol says
"""

from __future__ import annotations

from dataclasses import dataclass

from ....events.errors import KVAtlasError

ADVICE = {
    401: "the token or certificate is not accepted",
    403: "give the ServiceAccount a Role that may get, list and watch this",
    404: "the cluster does not serve this kind; install its CRD",
}
"""What mends a refusal, by HTTP status."""


class KubernetesError(KVAtlasError):
    """Something is wrong between the process and the Kubernetes API server."""


class AccessError(KubernetesError):
    """How to reach the API server cannot be found out, or what is found cannot be used."""


class MalformedError(KubernetesError):
    """An answer is not what the protocol says."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave nothing.

    Attributes:
        reason: a bounded word for counters: `unreachable`, `timeout`, `http_status`, `malformed`, `too_large`, `expired`,
            `cut` or `short`.
        message: for people.
        status: HTTP status, also of a Status inside a watch; None when there was no answer.
        retry_after_s: how long the server wants to be left alone; None when it does not say.
    """

    reason: str
    message: str
    status: int | None = None
    retry_after_s: float | None = None


class RequestFailedError(KubernetesError):
    """One request gave no answer that helps."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
