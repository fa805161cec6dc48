"""`data-parallel-profile-handler`: data-parallel ranks with a port each, behind one sidecar."""

from __future__ import annotations

from msgspec.structs import replace

from ..core.base import Rng, RunProfile
from ..core.candidates import Candidates
from ..core.decision import Decision, Placement
from ..core.headers import DATA_PARALLEL_HEADER
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..errors import ParametersError
from ..producers import PortNumber


class DataParallelParams(PluginParams, frozen=True):
    """Parameters of `data-parallel-profile-handler`."""

    primary_port: PortNumber = 8000
    """Port of the sidecar, to which requests go whichever rank is picked."""


class DataParallelHandler:
    """Handler that runs the one profile, names the picked rank in a header, and sends requests to the sidecar's port.

    Args:
        profile: name of the profile.
        port: port of the sidecar.
    """

    type = "data-parallel-profile-handler"

    def __init__(self, profile: str, port: int) -> None:
        self._profile, self._port = profile, port

    def place(
        self,
        request: RequestView,  # noqa: ARG002 (Handler)
        candidates: Candidates,  # noqa: ARG002 (Handler)
        run: RunProfile,
        *,
        rng: Rng,  # noqa: ARG002 (Handler)
    ) -> Decision:
        """Return the decision of the rank; see `Handler.place`."""
        decision = run(self._profile)
        if not decision.picked:
            return decision
        placement = Placement("data-parallel", self._profile)
        return replace(decision, placement=on_port(decision, placement, self._port))


def on_port(decision: Decision, placement: Placement, port: int) -> Placement:
    """Return the placement of a request that goes to another port, with the picked rank in a header."""
    headers = {**placement.headers, DATA_PARALLEL_HEADER: decision.best.address}
    return replace(placement, headers=headers, port=port)


def register(registry: Registry) -> None:
    """Register `data-parallel-profile-handler`."""
    registry.handlers.add(DataParallelHandler.type, DataParallelParams, _make)


def _make(params: DataParallelParams, context: BuildContext) -> DataParallelHandler:
    if len(context.profiles) != 1:
        raise ParametersError(f"found {len(context.profiles)} profiles, expected one")
    return DataParallelHandler(context.profiles[0], params.primary_port)
