"""Who sent a bearer token, and whether they may read a path: questions to the API server, whose answers are cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from hashlib import sha256
from typing import Protocol, TypeVar

import msgspec

from .errors import Failure, RequestFailedError
from .wire import DECODE_ERRORS, Wire

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

CACHE_S = 60.0
"""Time for which an answer stays valid, so that a revoked token or right is noticed. Source: as long as controller-runtime's."""

REFUSED_S = 10.0
"""The same for a refusal, so that a right just given is noticed."""

MAX_CACHED = 1024
"""Answers kept, the last used ones; callers choose their tokens."""

LIMIT_S = 10.0
"""Time limit of one review; scrapes end after ten seconds by default."""


class Verdict(Enum):
    """Answer about one call."""

    ALLOWED = "allowed"
    UNKNOWN_CALLER = "unknown_caller"
    """The API server does not accept the token."""
    FORBIDDEN = "forbidden"
    """The caller is known but has no right to this."""


class Sender(Protocol):
    """Sends requests to the API server; see `ApiServer.send`."""

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limit_s: float = LIMIT_S,
    ) -> bytes:
        """See `ApiServer.send`."""
        ...


class _User(Wire, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Wire, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _TokenReview(Wire, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(Wire, frozen=True):
    allowed: bool = False


class _AccessReview(Wire, frozen=True):
    status: _AccessStatus = _AccessStatus()


R = TypeVar("R", _TokenReview, _AccessReview)


class Reviews:
    """Asks the API server by TokenReview and SubjectAccessReview whether a token's owner may GET a path.

    Args:
        server: the API server.
        clock: monotonic seconds.
    """

    def __init__(self, server: Sender, *, clock: Callable[[], float]) -> None:
        self._server, self._clock = server, clock
        self._answers: OrderedDict[tuple[bytes, str], tuple[float, Verdict]] = OrderedDict()

    async def may_read(self, token: str, path: str) -> Verdict:
        """Return whether the owner of `token` may GET the non-resource URL `path`.

        Raises:
            RequestFailedError: the API server does not answer, or refuses the review itself.
        """
        key = (sha256(token.encode()).digest(), path)  # tokens themselves are not kept
        if (known := self._answers.get(key)) is not None and self._clock() < known[0]:
            self._answers.move_to_end(key)
            return known[1]
        verdict = await self._review(token, path)
        valid_s = CACHE_S if verdict is Verdict.ALLOWED else REFUSED_S
        self._answers[key] = (self._clock() + valid_s, verdict)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_CACHED:
            self._answers.popitem(last=False)
        return verdict

    async def _review(self, token: str, path: str) -> Verdict:
        spec: dict[str, object] = {"token": token}
        found = await self._create(
            TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", spec, _TokenReview
        )
        if not found.status.authenticated:
            return Verdict.UNKNOWN_CALLER
        user = found.status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        answer = await self._create(
            ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec, _AccessReview
        )
        return Verdict.ALLOWED if answer.status.allowed else Verdict.FORBIDDEN

    async def _create(self, path: str, version: str, kind: str, spec: object, form: type[R]) -> R:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        answer = await self._server.send("POST", path, body=body, limit_s=LIMIT_S)
        try:
            return msgspec.json.decode(answer, type=form)
        except DECODE_ERRORS:
            # the response repeats the token, so neither it nor the error goes into the text
            failure = Failure("malformed", f"POST {path}: the response is no {kind}")
            raise RequestFailedError(failure) from None
