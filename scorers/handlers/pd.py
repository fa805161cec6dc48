"""`pd-profile-handler`: prefill and decode on different servers, in an older form of `disagg-profile-handler`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from ..core.base import Rng, RunProfile
from ..core.candidates import Candidates
from ..core.decision import PREFILL, Decision
from ..core.headers import StageHeaders
from ..core.ignored import Ignored
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from .data_parallel import on_port
from .disagg import DECODE, DisaggHandler, HandledProfiles, ProfileName

_ANY_PREFIX = Ignored("all that is known of the decode server's cache counts, whichever plugin knows it")


class PdParams(PluginParams, frozen=True):
    """Parameters of `pd-profile-handler`."""

    decode_profile: ProfileName = DECODE
    """Profile that picks the server which answers."""
    prefill_profile: ProfileName = PREFILL
    """Profile that picks the server which computes the prompt."""
    decider_plugin_name: str = "prefix-based-pd-decider"
    """Name of the decider of the prefill stage."""
    primary_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port to which requests go, as `data-parallel-profile-handler` does it; 0: the server's own."""
    prefix_plugin_type: Annotated[str, _ANY_PREFIX] = ""
    """Accepted without effect."""
    prefix_plugin_name: Annotated[str, _ANY_PREFIX] = ""
    """Accepted without effect."""
    prefix_match_info_producer_name: Annotated[str, _ANY_PREFIX] = ""
    """Accepted without effect."""

    def remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield that no prefill stage can come about."""
        if context.stage_headers is None:
            yield (
                "runs no prefill stage, as no disagg-headers-handler names its server to the sidecar; "
                "use disagg-profile-handler, which does both"
            )


class PdHandler:
    """Handler that runs a `DisaggHandler` and moves requests to another port.

    Args:
        stages: the stages.
        port: port to which requests go, 0 for the server's own.
    """

    type = "pd-profile-handler"

    def __init__(self, stages: DisaggHandler, port: int) -> None:
        self._stages, self._port = stages, port

    def place(self, request: RequestView, candidates: Candidates, run: RunProfile, *, rng: Rng) -> Decision:
        """Return the decision of the decode server, with a prefill stage if it is wanted; see `Handler.place`."""
        decision = self._stages.place(request, candidates, run, rng=rng)
        if not self._port or decision.placement is None or not decision.picked:
            return decision
        return replace(decision, placement=on_port(decision, decision.placement, self._port))


class HeaderHandlerParams(PluginParams, frozen=True):
    """Parameters of `disagg-headers-handler` and `prefill-header-handler`."""

    prefill_profile: ProfileName = PREFILL
    """Profile of which the server is named as the one that computes the prompt."""
    encode_profile: ProfileName = "encode"
    """Profile of which the servers are named as those that encode media."""


def register(registry: Registry) -> None:
    """Register `pd-profile-handler`, and the two names of the plugin that writes its headers."""
    registry.handlers.add(PdHandler.type, PdParams, _make)
    for plugin_type in ("disagg-headers-handler", "prefill-header-handler"):
        registry.stage_headers.add(plugin_type, HeaderHandlerParams, _make_headers)


def _make(params: PdParams, context: BuildContext) -> PdHandler:
    decider = context.decider(params.decider_plugin_name, "deciderPluginName")
    decode = context.known_profile(params.decode_profile, "decodeProfile")
    headers = context.stage_headers
    prefill = params.prefill_profile if params.prefill_profile in context.profiles else None
    if headers is None or headers.prefill_profile != prefill:
        prefill = None
    return PdHandler(DisaggHandler(HandledProfiles(decode, prefill), prefill=decider), params.primary_port)


def _make_headers(params: HeaderHandlerParams, _: BuildContext) -> StageHeaders:
    return StageHeaders(params.prefill_profile, params.encode_profile)
