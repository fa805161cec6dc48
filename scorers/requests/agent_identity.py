"""`agent-identity`: the agent's session is the flow that a request counts for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry

PLUGIN_TYPE = "agent-identity"

AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""Headers of Claude Code, OpenCode, Codex, and Codex up to 0.130. Source: the reference, in its order."""


class AgentIdentityParams(PluginParams, frozen=True):
    """Parameters of `agent-identity`."""

    additional_session_headers: tuple[str, ...] = ()
    """Headers that are looked at before those of known agents, in this order."""

    def attribute(self, headers: Mapping[str, str]) -> str:
        """Return the identity, empty if there is none; see `RequestAttribute`."""
        own = (name.lower() for name in self.additional_session_headers)
        return _first(headers, (*own, *AGENT_HEADERS))


class AgentIdentity:
    """The first header that is not empty.

    Args:
        headers: lower-case names, in the order of precedence.
    """

    type = PLUGIN_TYPE

    def __init__(self, headers: tuple[str, ...]) -> None:
        self._headers = headers

    def identity(self, headers: Mapping[str, str]) -> str:
        """Return its value, empty if there is none."""
        return _first(headers, self._headers)


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for name in names if (value := headers.get(name))), "")


def register(registry: Registry) -> None:
    """Register `agent-identity`."""
    registry.identities.add(PLUGIN_TYPE, AgentIdentityParams, _make)


def _make(params: AgentIdentityParams, _: BuildContext) -> AgentIdentity:
    own = tuple(name.lower() for name in params.additional_session_headers)
    return AgentIdentity((*own, *AGENT_HEADERS))
