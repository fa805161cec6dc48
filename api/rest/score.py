"""`/v1/score`: the decision a prompt would get, with its reasons, without routing anything."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from ...indexer.atlas import keys_of
from ...routing.dry_run import PromptQuery, dry_run
from ...routing.picker import Picker
from .decision_models import ScoreResponse
from .errors import UnavailableError
from .explanation import score_body
from .models import ScoreRequest


def score_routes(picker: Picker, *, route_class: type[APIRoute]) -> APIRouter:
    """Return the route of `/v1/score`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"], route_class=route_class)

    @router.post(
        "/score", summary="Which endpoint would take this prompt, and why?", response_model=ScoreResponse
    )
    async def score(request: ScoreRequest, http: Request) -> Response:
        """Return every endpoint with its prefix, scores, weights and total."""
        decision = await dry_run(
            picker,
            PromptQuery(
                model=request.model,
                text=request.prompt,
                messages=request.messages,
                token_ids=request.token_ids,
                keys=keys_of(request.keys) if request.keys is not None else None,
                block_size=request.block_size,
                cache_salt=request.cache_salt,
                n_bytes=len(await http.body()),
            ),
        )
        if decision is None:
            raise UnavailableError(
                "there is no endpoint; endpoints.static, endpoints.file or endpoints.kubernetes says where they are"
            )
        return Response(score_body(decision), media_type="application/json")

    return router
