"""`/v1/recorder`: how recording goes."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from ...routing.observers.recorder.recorder import Recorder
from .models import Own


class RecorderOut(Own):
    """Answer of `/v1/recorder`."""

    folder: str | None = Field(description="where traces are kept; null: nothing is recorded")
    file: str | None = Field(description="the one that is written; null before the first request")
    bytes: int = Field(description="size of all traces in the folder, as of the last write")
    requests: dict[str, int] = Field(
        description="routed requests by what became of them: recorded, or why not: no_prefix, cut, several_prompts, "
        "too_long, overload, not_written"
    )
    unknown_outputs: int = Field(description="recorded requests whose output is not known")
    waiting: int = Field(description="requests that wait to be written")
    failure: str | None = Field(description="why the last write failed")


NOT_RECORDING = RecorderOut(
    folder=None, file=None, bytes=0, requests={}, unknown_outputs=0, waiting=0, failure=None
)


def recorder_routes(recorder: Recorder | None) -> APIRouter:
    """`/v1/recorder`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/recorder", summary="How does recording go?")
    async def state() -> RecorderOut:
        """Where traces are, and how many requests are in them."""
        return _state(recorder) if recorder is not None else NOT_RECORDING

    return router


def _state(recorder: Recorder) -> RecorderOut:
    files = recorder.files
    return RecorderOut(
        folder=str(files.folder),
        file=files.current.name if files.current is not None else None,
        bytes=files.size_bytes,
        requests={fate.value: count for fate, count in recorder.fates.items()},
        unknown_outputs=recorder.n_without_output,
        waiting=recorder.n_waiting,
        failure=recorder.failure or None,
    )
