"""`single-profile-handler`: one profile."""

from __future__ import annotations

from ..core.base import Rng, RunProfile
from ..core.candidates import Candidates
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..errors import ParametersError


class SingleParams(PluginParams, frozen=True, forbid_unknown_fields=False):
    """Parameters of `single-profile-handler`: any, without effect, as in the reference."""


class SingleHandler:
    """Handler that runs the one profile. A plan leaves it out, since a profile alone does the same.

    Args:
        profile: name of the profile.
    """

    type = "single-profile-handler"

    def __init__(self, profile: str) -> None:
        self._profile = profile

    def place(
        self,
        request: RequestView,  # noqa: ARG002 (Handler)
        candidates: Candidates,  # noqa: ARG002 (Handler)
        run: RunProfile,
        *,
        rng: Rng,  # noqa: ARG002 (Handler)
    ) -> Decision:
        """Return the decision of the profile."""
        return run(self._profile)


def register(registry: Registry) -> None:
    """Register `single-profile-handler`."""
    registry.handlers.add(SingleHandler.type, SingleParams, _make)


def _make(_: SingleParams, context: BuildContext) -> SingleHandler:
    if len(context.profiles) != 1:
        raise ParametersError(
            f"found {len(context.profiles)} profiles, expected one; disagg-profile-handler runs several"
        )
    return SingleHandler(context.profiles[0])
