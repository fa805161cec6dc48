"""Protocols of plugins around a decision. They act in every request once they are declared; no profile names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class IdentityReader(Protocol):
    """Plugin that finds out by headers which agent or session a request counts for."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def identity(self, headers: Mapping[str, str]) -> str:
        """Return the identity, empty if no header has one; `headers` are lower-case name -> value."""
        ...


class UsageCounts(NamedTuple):
    """Tokens of a request that has ended, 0 if the engine did not count them.

    Attributes:
        prompt_tokens: of the whole prompt.
        completion_tokens: generated.
        cached_tokens: of the prompt, found in the engine's cache; None if the engine did not count them.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


class Attribute(NamedTuple):
    """A number about a request, for the gateway's dynamic metadata.

    Attributes:
        namespace: top-level key in the metadata.
        name: key below it.
        value: a whole number.
    """

    namespace: str
    name: str
    value: float


class AttributeReporter(Protocol):
    """Plugin that reports a number about each request to the gateway, at its end."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def attribute(self, usage: UsageCounts) -> Attribute | None:
        """Return the number, None if there is none to report."""
        ...


class ModelsResponder(NamedTuple):
    """Plugin that has `GET /v1/models` answered with what the endpoints serve.

    Attributes:
        type: the plugin type, its name in the configuration.
    """

    type: str
