"""The answer of `/v1/recorder`."""

from __future__ import annotations

from pydantic import Field

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
