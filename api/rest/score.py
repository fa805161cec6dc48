"""`/v1/score`: the decision a prompt would get, without routing it."""

from __future__ import annotations

from array import array
from typing import cast

from fastapi import APIRouter, Response

from ...indexer.atlas import keys_of
from ...routing.dry_run import PromptQuery, dry_run
from ...routing.picker import Picker
from .decision_models import ScoreResponse
from .errors import UnavailableError
from .explanation import score_body
from .models import ScoreRequest
from .question_bodies import JSON
from .questions import Question


class Scores:
    """Answers `/v1/score`.

    Args:
        picker: decides.
    """

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    async def of(self, request: ScoreRequest, n_bytes: int = 0) -> bytes:
        """Return every endpoint with its prefix, scores, weights and total, as JSON; `n_bytes` is the length of the body.

        Raises:
            RequestError, NotReadError: as of `dry_run`.
            UnavailableError: there is no endpoint.
        """
        decision = await dry_run(
            self._picker,
            PromptQuery(
                model=request.model,
                text=request.prompt,
                messages=request.messages,
                token_ids=request.token_ids,
                keys=keys_of(request.keys) if request.keys is not None else None,
                block_size=request.block_size,
                cache_salt=request.cache_salt,
                n_bytes=0
                if isinstance(cast("object", request.token_ids), array)
                else n_bytes,  # ids are read already
            ),
        )
        if decision is None:
            raise UnavailableError(
                "there is no endpoint; endpoints.static, endpoints.file or endpoints.kubernetes says where they are"
            )
        return score_body(decision)

    @property
    def questions(self) -> dict[str, Question]:
        """It, for the door."""
        return {"/v1/score": Question(ScoreRequest, self.of)}


def score_routes(scores: Scores) -> APIRouter:
    """Return the route of `/v1/score`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.post(
        "/score", summary="Which endpoint would take this prompt, and why?", response_model=ScoreResponse
    )
    async def score(request: ScoreRequest) -> Response:
        """Return every endpoint with its prefix, scores, weights and total."""
        return Response(await scores.of(request), media_type=JSON)

    return router
