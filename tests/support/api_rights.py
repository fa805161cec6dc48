"""Users and rights of the fake API server: what the process may do, and the two reviews of other users' tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.api_watch import Json, status

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass
class Rights:
    """Rights of the process, and of others."""

    rules: Sequence[Mapping[str, Any]] | None = None
    """RBAC rules of the process; None allows everything."""
    users: dict[str, Json] = field(default_factory=dict[str, Json])
    """Token -> user info of a TokenReview."""
    readers: set[str] = field(default_factory=set[str])
    """Names of users that may GET `/metrics`."""
    n_reviews: int = 0
    """Reviews answered."""
    seen: list[Json] = field(default_factory=list[Json])
    """Specs of SubjectAccessReviews."""

    def refusal(self, verb: str, path: str) -> web.Response | None:
        """Return the 403 of a request that no rule allows."""
        _, kind, group, *_, resource = path.split("/")
        if self.rules is None or any(
            {"api": "", "apis": group}[kind] in rule.get("apiGroups", ())
            and resource in rule.get("resources", ())
            and verb in rule["verbs"]
            for rule in self.rules
        ):
            return None
        return status(403, "Forbidden", f"{resource} is forbidden: User cannot {verb} resource")

    async def review(self, request: web.Request) -> web.Response:
        """Answer a TokenReview or a SubjectAccessReview."""
        body: Json = await request.json()
        spec = body["spec"]
        self.n_reviews += 1
        if request.path == TOKEN_REVIEWS:
            user = self.users.get(spec["token"])
            found: Json = (
                {"error": "invalid bearer token"} if user is None else {"authenticated": True, "user": user}
            )
        else:
            self.seen.append(spec)
            wanted = spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
            found = {"allowed": wanted and spec["user"] in self.readers}
        return web.json_response(body | {"status": found}, status=201)
