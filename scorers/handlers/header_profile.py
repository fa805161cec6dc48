"""`header-profile-handler`: a request header names the profile."""

from __future__ import annotations

from msgspec.structs import replace

from ..core.base import Rng, RunProfile
from ..core.candidates import Candidates
from ..core.decision import PROFILE, Decision, Placement, Stage
from ..core.headers import StageHeaders
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from .disagg import DECODE, ProfileName


class HeaderProfileParams(PluginParams, frozen=True):
    """Parameters of `header-profile-handler`."""

    header_name: ProfileName = "EPP-Profile"
    """Request header with the name of a profile; case of the header's name does not matter."""
    default_profile: ProfileName = DECODE
    """Profile of requests without the header, or with an empty one."""


class HeaderProfileHandler:
    """Handler that runs the profile which a request header names; with one profile it runs that.

    Args:
        profiles: names of the profiles.
        header: lower-case name of the header.
        default: name of the profile of requests without it.
        stage_headers: writes headers for the sidecar by the name of the profile; None if none are wanted.
    """

    type = "header-profile-handler"

    def __init__(
        self,
        profiles: tuple[str, ...],
        header: str,
        default: str,
        stage_headers: StageHeaders | None = None,
    ) -> None:
        self._profiles, self._first = frozenset(profiles), profiles[0]
        self._header, self._default = header, default
        self._stage_headers = stage_headers

    def place(
        self,
        request: RequestView,
        candidates: Candidates,  # noqa: ARG002 (Handler)
        run: RunProfile,
        *,
        rng: Rng,  # noqa: ARG002 (Handler)
    ) -> Decision:
        """Return the decision of the profile; nothing is picked if there is no profile of that name."""
        name = self._first
        if len(self._profiles) > 1:
            name = request.headers.get(self._header, "").strip() or self._default
        if name not in self._profiles:
            nothing = run(self._first)
            lacking = Placement("none", self._first, lacking=PROFILE)
            return replace(nothing, picked=(), row=-1, chosen=None, placement=lacking)
        decision = run(name)
        placement = Placement("named-profile" if decision.picked else "none", name)
        if self._stage_headers is not None and decision.picked:
            headers = self._stage_headers.of([Stage(name, name, decision)])
            placement = replace(placement, headers=headers)
        return replace(decision, placement=placement)


def register(registry: Registry) -> None:
    """Register `header-profile-handler`."""
    registry.handlers.add(HeaderProfileHandler.type, HeaderProfileParams, _make)


def _make(params: HeaderProfileParams, context: BuildContext) -> HeaderProfileHandler:
    if len(context.profiles) > 1:
        context.known_profile(params.default_profile, "defaultProfile")
    return HeaderProfileHandler(
        context.profiles, params.header_name.lower(), params.default_profile, context.stage_headers
    )
