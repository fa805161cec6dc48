"""`disagg-profile-handler`: encode, prefill and decode on different servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from ..core.base import Decider, Rng, RunProfile
from ..core.candidates import Candidates
from ..core.decision import ENCODE, PREFILL, Decision, Placement, Stage
from ..core.headers import StageHeaders
from ..core.model import Candidate, RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..errors import ParametersError

DECODE = "decode"
"""Default name of the profile that picks the endpoint which answers."""

ORDERS = {"": True, "decodefirst": True, "decode": True, "prefillfirst": False, "prefill": False}
"""Value of `stageOrder`, in lower case without `-` and `_` -> whether decode comes first."""

ProfileName = Annotated[str, Meta(min_length=1)]


class StageProfiles(PluginParams, frozen=True):
    """`profiles` of `disagg-profile-handler`."""

    decode: ProfileName = DECODE
    """Profile that picks the server which answers."""
    prefill: ProfileName = PREFILL
    """Profile that picks the server which computes the prompt; without a profile of that name there is no such stage."""
    encode: ProfileName = ENCODE
    """Profile that picks the servers which encode media; without a profile of that name there is no such stage."""
    fallback: ProfileName | None = None
    """Profile that picks one server for all if a wanted stage has no server; absent: see `missingStage`."""


class StageDeciders(PluginParams, frozen=True):
    """`deciders` of `disagg-profile-handler`."""

    prefill: str = ""
    """Name of the decider of the prefill stage; absent: there is no such stage, but with `stageOrder: prefill-first`."""
    encode: str = ""
    """Name of the decider of the encode stage; absent: there is no such stage."""


class DisaggParams(PluginParams, frozen=True):
    """Parameters of `disagg-profile-handler`."""

    stage_order: str = ""
    """decode-first, or prefill-first: then every request has a prefill stage."""
    profiles: StageProfiles | None = None
    """Names of the stages' profiles."""
    deciders: StageDeciders | None = None
    """Names of the stages' deciders."""
    missing_stage: Literal["refuse", "skip"] = "refuse"
    """Request with a wanted stage that no server can do: refuse answers 503, skip leaves the stage to the decode server."""
    decode_profile: str = ""
    """Older form of `profiles.decode`."""
    prefill_profile: str = ""
    """Older form of `profiles.prefill`."""
    encode_profile: str = ""
    """Older form of `profiles.encode`."""
    prefill_decider_plugin_name: str = ""
    """Older form of `deciders.prefill`."""
    encode_decider_plugin_name: str = ""
    """Older form of `deciders.encode`."""
    decider_plugin_name: str = ""
    """Oldest form of `deciders.prefill`, which the other two precede."""

    @property
    def _older(self) -> dict[str, str]:
        given = {
            "decodeProfile": self.decode_profile,
            "prefillProfile": self.prefill_profile,
            "encodeProfile": self.encode_profile,
            "prefillDeciderPluginName": self.prefill_decider_plugin_name,
            "encodeDeciderPluginName": self.encode_decider_plugin_name,
            "deciderPluginName": self.decider_plugin_name,
        }
        return {key: value for key, value in given.items() if value}

    def stages(self) -> tuple[StageProfiles, StageDeciders]:
        """Return profiles and deciders, in whichever form they are given.

        Raises:
            ParametersError: both forms are given.
        """
        older = self._older
        if not older:
            return self.profiles or StageProfiles(), self.deciders or StageDeciders()
        if self.profiles is not None or self.deciders is not None:
            message = "found beside profiles or deciders, of which it is an older form; keep one form"
            raise ParametersError(message, next(iter(older)))
        return (
            StageProfiles(
                decode=self.decode_profile or DECODE,
                prefill=self.prefill_profile or PREFILL,
                encode=self.encode_profile or ENCODE,
            ),
            StageDeciders(
                prefill=self.prefill_decider_plugin_name or self.decider_plugin_name,
                encode=self.encode_decider_plugin_name,
            ),
        )

    @property
    def is_decode_first(self) -> bool:
        """Return whether the decode server is picked first.

        Raises:
            ParametersError: there is no such order.
        """
        order = self.stage_order.lower().replace("-", "").replace("_", "")
        if order not in ORDERS:
            message = f"found {self.stage_order!r}, expected decode-first or prefill-first"
            raise ParametersError(message, "stageOrder")
        return ORDERS[order]


class HandledProfiles(NamedTuple):
    """Names of the profiles that a `DisaggHandler` runs, None for those that the configuration does not have.

    Attributes:
        decode: profile of the server that answers.
        prefill: profile of the server that computes the prompt.
        encode: profile of the servers that encode media.
        fallback: profile of one server for all.
    """

    decode: str = DECODE
    prefill: str | None = None
    encode: str | None = None
    fallback: str | None = None


class DisaggHandler:
    """Handler that picks a decode server, and servers for the prefill and encode stages if their deciders want them.

    Args:
        profiles: names of the stages' profiles.
        prefill: decider of the prefill stage, None if there is none.
        encode: decider of the encode stage, None if there is none.
        is_decode_first: whether the decode server is picked first; if not, every request has a prefill stage.
        skips_missing: whether a wanted stage that no server can do is left to the decode server.
    """

    type = "disagg-profile-handler"

    def __init__(
        self,
        profiles: HandledProfiles,
        *,
        prefill: Decider | None = None,
        encode: Decider | None = None,
        is_decode_first: bool = True,
        skips_missing: bool = False,
    ) -> None:
        self._profiles = profiles
        self._prefill, self._encode = prefill, encode
        self._is_decode_first, self._skips_missing = is_decode_first, skips_missing
        self._headers = StageHeaders(profiles.prefill or PREFILL, profiles.encode or ENCODE)

    def place(
        self,
        request: RequestView,
        candidates: Candidates,  # noqa: ARG002 (Handler)
        run: RunProfile,
        *,
        rng: Rng,  # noqa: ARG002 (Handler)
    ) -> Decision:
        """Return the decision of the decode server, with the other stages; see `Handler.place`."""
        if not request.has_body:
            return self._placed(run(self._profiles.decode), ())
        stages: Iterable[Stage] = ()
        if self._is_decode_first:
            decode = run(self._profiles.decode)
            if decode.picked:
                stages = self._stages_after(request, decode.best, run)
        else:
            stages = before = self._stages_before(request, run)
            first = before[0].decision if before and before[0].name == PREFILL else None
            decode = run(
                self._profiles.decode, peer=first.best if first is not None and first.picked else None
            )
        if not decode.picked:
            return self._placed(decode, ())
        found: list[Stage] = []
        for stage in stages:
            if not stage.decision.picked and not self._skips_missing:
                return self._without(stage, decode, run)
            if stage.decision.picked and not _is_of(stage, decode):
                found.append(stage)
        return self._placed(decode, tuple(found))

    def _stages_after(self, request: RequestView, decode: Candidate, run: RunProfile) -> Iterator[Stage]:
        """Yield the wanted stages, once the decode server is picked."""
        names = self._profiles
        if names.encode is not None and self._encode is not None and self._encode.wants(request, decode):
            yield Stage(ENCODE, names.encode, run(names.encode))
        if names.prefill is not None and self._prefill is not None and self._prefill.wants(request, decode):
            yield Stage(PREFILL, names.prefill, run(names.prefill, peer=decode))

    def _stages_before(self, request: RequestView, run: RunProfile) -> list[Stage]:
        """Return the wanted stages, before the decode server is picked."""
        names, stages = self._profiles, list[Stage]()
        if names.prefill is not None:
            stages.append(Stage(PREFILL, names.prefill, run(names.prefill)))
        if names.encode is not None and self._encode is not None and self._encode.wants(request, None):
            stages.append(Stage(ENCODE, names.encode, run(names.encode)))
        return stages

    def _without(self, missing: Stage, decode: Decision, run: RunProfile) -> Decision:
        """Return the placement of a request with a wanted stage that no server can do."""
        fallback = self._profiles.fallback
        if fallback is not None:
            alone = run(fallback)
            if alone.picked:
                return replace(alone, placement=Placement("aggregated-fallback", fallback))
        placement = Placement("none", self._profiles.decode, lacking=missing.name)
        return replace(decode, picked=(), row=-1, chosen=None, placement=placement)

    def _placed(self, decode: Decision, stages: tuple[Stage, ...]) -> Decision:
        kind = kind_of(stages) if decode.picked else "none"
        return replace(
            decode, placement=Placement(kind, self._profiles.decode, stages, self._headers.of(stages))
        )


def kind_of(stages: Iterable[Stage]) -> str:
    """Return the kind of a placement with these stages beside decode."""
    names = {each.name for each in stages}
    return (
        "-".join([each for each in (ENCODE, PREFILL) if each in names] + [DECODE]) if names else "decode-only"
    )


def _is_of(stage: Stage, decode: Decision) -> bool:
    """Return whether the decode server does the stage too: it needs no transfer from itself."""
    picked = stage.decision.picked
    return (picked[:1] if stage.name == PREFILL else picked) == decode.picked[:1]


def register(registry: Registry) -> None:
    """Register `disagg-profile-handler`."""
    registry.handlers.add(DisaggHandler.type, DisaggParams, _make)


def _make(params: DisaggParams, context: BuildContext) -> DisaggHandler:
    is_decode_first, (names, deciders) = params.is_decode_first, params.stages()
    if not is_decode_first and deciders.prefill:
        message = "found a decider, but with stageOrder: prefill-first every request has a prefill stage"
        raise ParametersError(message, "deciders.prefill")
    if names.fallback is not None and (
        not is_decode_first or names.fallback in (names.decode, names.prefill, names.encode)
    ):
        message = f"found {names.fallback!r}, expected a profile of its own, and stageOrder: decode-first"
        raise ParametersError(message, "profiles.fallback")
    context.known_profile(names.decode, "profiles.decode")
    if names.fallback is not None:
        context.known_profile(names.fallback, "profiles.fallback")
    prefill = context.decider(deciders.prefill, "deciders.prefill") if deciders.prefill else None
    encode = context.decider(deciders.encode, "deciders.encode") if deciders.encode else None
    return DisaggHandler(
        HandledProfiles(
            decode=names.decode,
            prefill=names.prefill if names.prefill in context.profiles else None,
            encode=names.encode if names.encode in context.profiles else None,
            fallback=names.fallback,
        ),
        prefill=prefill,
        encode=encode,
        is_decode_first=is_decode_first,
        skips_missing=params.missing_stage == "skip",
    )
