"""`/v1/score`: the decision a prompt would get, with its reasons, without routing anything."""

from __future__ import annotations

from fastapi import APIRouter

from ...indexer.atlas import keys_of
from ...indexer.prefix import Prefix
from ..picker import Picker
from ..tokenization.model import Prompt
from ..tokenization.request import direct_request
from .decision_models import ScoreResponse
from .errors import UnavailableError
from .explanation import score_response
from .models import ScoreRequest
from .standard import prefix_of_keys


def score_routes(picker: Picker) -> APIRouter:
    """`/v1/score`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.post("/score", summary="Which endpoint would take this prompt, and why?")
    async def score(request: ScoreRequest) -> ScoreResponse:
        """Every endpoint with its prefix, scores, weights and total."""
        prompt: Prompt | None = None
        prefix: Prefix | None
        if request.keys is not None:
            prefix = prefix_of_keys(keys_of(request.keys), request.block_size, picker.fleet.atlas)
        else:
            given = direct_request(
                model=request.model,
                text=request.prompt,
                messages=request.messages,
                token_ids=request.token_ids,
                cache_salt=request.cache_salt,
            )
            prompt = await picker.pipeline.tokenize(given)
            prefix = picker.prefix(prompt)
        decision = picker.decide(model=request.model, prefix=prefix, prompt=prompt)
        if decision is None:
            raise UnavailableError("no endpoint is configured; add some under endpoints.static")
        return score_response(decision)

    return router
