"""The encode stage: each image, video or sound of a chat goes to an encoder before the prompt is computed."""

from __future__ import annotations

import asyncio
import uuid

from support.sidecar.bodies import encoder_body, media_of
from support.sidecar.errors import BadBodyError, encoded, object_of
from support.sidecar.json_values import Json, as_object
from support.sidecar.legs import BrokenAnswerError, Call, Legs, NoAnswerError
from support.sidecar.route import Headers

_PATH = "/v1/chat/completions"


class EncodeStage:
    """Requests to encoders.

    Args:
        legs: sends them.
        passes_params: whether what encoders answer goes into the later legs' bodies.
    """

    def __init__(self, legs: Legs, *, passes_params: bool) -> None:
        self._legs, self._passes_params = legs, passes_params

    async def run(self, call: Call, encoders: tuple[str, ...]) -> Call:
        """Have all media encoded, and return the request for the next stage.

        Raises:
            BadBodyError: the body is no JSON object, or an encoder failed, of which the client is told.
        """
        body = object_of(call.body, prefix="invalid JSON: ") or {}
        name = str(uuid.uuid4())
        parts = media_of(body)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._encoded(
                            number, call, encoders[number % len(encoders)], encoder_body(body, part), name
                        )
                    )
                    for number, part in enumerate(parts)
                ]
        except* BadBodyError as errors:
            raise errors.exceptions[0] from None
        if self._passes_params:
            merged: Json = {}
            for task in tasks:
                merged |= task.result()
            if merged:
                body["ec_transfer_params"] = merged
        body["cache_hit_threshold"] = 0
        return call.with_header("x-request-id", name).with_body(encoded(body))

    async def _encoded(self, number: int, call: Call, encoder: str, body: Json, name: str) -> Json:
        """Return the parameters with which the later legs find what was encoded."""
        headers = Headers({"content-type": "application/json", "x-request-id": f"{name}-enc-{number}"})
        leg = Call(call.request, _PATH, headers, encoded(body))
        try:
            answer = await self._legs.whole(encoder, leg)
        except (NoAnswerError, BrokenAnswerError) as error:
            raise BadBodyError(f"encoder request failed for item {number}: {error}", status=502) from error
        if answer.status != 200:
            text = f"encoder request failed for item {number} with status {answer.status}"
            raise BadBodyError(text, status=502)
        if not self._passes_params:
            return {}
        try:
            said = object_of(answer.body) or {}
        except BadBodyError as error:
            raise BadBodyError(f"encoder response of item {number}: {error}", status=502) from error
        return as_object(said.get("ec_transfer_params"))
