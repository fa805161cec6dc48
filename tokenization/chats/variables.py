"""What a chat template sees by name beside the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUES_NOT_GIVEN = (None, "auto")
"""Template variables with these values count as not given."""

ENGINE_VARIABLES = ("add_generation_prompt", "continue_final_message", "return_dict", "tokenize")
"""Names in `chat_template_kwargs` that the engine takes for itself; its own values win."""


def template_variables(given: Mapping[str, Any] | None, reasoning_effort: str | None) -> dict[str, Any]:
    """The variables of a request.

    Args:
        given: `chat_template_kwargs`.
        reasoning_effort: as the API has it; None when the request does not say.
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
    """`variables` with a reasoning effort; it also switches thinking on or off unless the request does so itself."""
    if reasoning_effort is None:
        return variables
    thinks = {"enable_thinking": reasoning_effort != "none"}
    return {**thinks, **variables, "reasoning_effort": reasoning_effort}
