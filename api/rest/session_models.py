"""The sessions of a prompt's blocks, as `/query` shows them."""

from __future__ import annotations

from pydantic import BaseModel, Field


class SessionTokens(BaseModel):
    """Consecutive tokens of a prompt whose blocks a request of one session stored."""

    dp_rank: int = Field(description="data-parallel rank")
    session_id: str | None = Field(
        description="as the engine's events name it; null: a request without session"
    )
    tokens: int = Field(description="their number; each rank's tokens follow each other from the first on")
