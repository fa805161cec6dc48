"""`/v1/recorder`: the state of recording."""

from __future__ import annotations

from fastapi import APIRouter

from ...routing.observers.recorder.recorder import Recorder
from .recorder_models import RecorderOut

NOT_RECORDING = RecorderOut(
    folder=None, file=None, bytes=0, requests={}, unknown_outputs=0, waiting=0, failure=None
)


def recorder_routes(recorder: Recorder | None) -> APIRouter:
    """Return the route of `/v1/recorder`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/recorder", summary="How does recording go?")
    async def state() -> RecorderOut:
        """Return the place of the traces, and counts of requests by outcome."""
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
