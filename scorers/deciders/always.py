"""`always-disagg-pd-decider` and `always-disagg-multimodal-decider`."""

from __future__ import annotations

from ..core.model import Candidate, RequestView
from ..core.params import NoParams
from ..core.registry import Registry


class AlwaysDecider:
    """Decider that wants its stage for every request."""

    type = "always-disagg-pd-decider"

    def wants(self, request: RequestView, endpoint: Candidate | None) -> bool:  # noqa: ARG002 (Decider)
        """Return True."""
        return True


class MultimodalDecider:
    """Decider that wants its stage for requests with images, video or audio."""

    type = "always-disagg-multimodal-decider"
    reads_media = True

    def wants(self, request: RequestView, endpoint: Candidate | None) -> bool:  # noqa: ARG002 (Decider)
        """Return whether the prompt has media."""
        return bool(request.media)


def register(registry: Registry) -> None:
    """Register both deciders, which take no parameters."""
    registry.deciders.add(AlwaysDecider.type, NoParams, lambda _params, _context: AlwaysDecider())
    registry.deciders.add(MultimodalDecider.type, NoParams, lambda _params, _context: MultimodalDecider())
