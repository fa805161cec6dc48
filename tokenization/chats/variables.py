"""Template variables of a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUES_NOT_GIVEN = (None, "auto")
"""Template variables with these values are dropped."""

ENGINE_VARIABLES = ("add_generation_prompt", "continue_final_message", "return_dict", "tokenize")
"""Names in `chat_template_kwargs` that the engine reserves and overrides."""


def template_variables(given: Mapping[str, Any] | None, reasoning_effort: str | None) -> dict[str, Any]:
    """Return the template variables of a request.

    Args:
        given: `chat_template_kwargs`.
        reasoning_effort: as the API has it; None if the request does not set it.
    """
    if not given and reasoning_effort is None:
        return {}
    variables = with_effort(dict(given or {}), reasoning_effort)
    return {
        name: value
        for name, value in variables.items()
        if value not in VALUES_NOT_GIVEN and name not in ENGINE_VARIABLES
    }


def with_effort(variables: dict[str, Any], reasoning_effort: str | None) -> dict[str, Any]:
    """Add a reasoning effort to `variables`; it also sets `enable_thinking` unless the request does."""
    if reasoning_effort is None:
        return variables
    thinks = {"enable_thinking": reasoning_effort != "none"}
    return {**thinks, **variables, "reasoning_effort": reasoning_effort}
