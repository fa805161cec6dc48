"""Scheduler: several profiles and the handler that runs them, called once per request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from ..errors import NoCandidatesError, ProfileError
from .base import AcceptsOldLoad, Handler, Predictor, Rng, Scorer
from .candidates import Candidates
from .decision import Decision, qualified
from .faults import PluginFault
from .kv_source import KvSource
from .learners import Learners
from .model import Candidate, RequestView
from .profile import Profile
from .shared import Shared


class Scheduler:
    """Decision procedure with several profiles: a handler runs them and composes a placement.

    It has the interface of `Profile`.

    Args:
        profiles: name -> profile, at least one; they have neither screeners nor admitters nor a predictor.
        handler: runs them.
        common: screeners, admitters and predictor, which act once, before the profiles; None if there are none.
        reads_media: whether the handler reads the media of requests.
        kv_source: finds the endpoints from which blocks are pulled, None if none are.

    Raises:
        ProfileError: there is no profile.
    """

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        handler: Handler,
        *,
        common: Profile | None = None,
        reads_media: bool = False,
        kv_source: KvSource | None = None,
    ) -> None:
        if not profiles:
            raise ProfileError("a handler needs at least one profile")
        self._profiles, self._handler, self._common = dict(profiles), handler, common
        self._learners = Learners([(handler.type, handler)])
        self._kv_source = kv_source
        self.reads_media = reads_media or any(each.reads_media for each in profiles.values())
        """Whether a plugin reads the media of requests."""
        deciding = [*profiles.values()] if common is None else [common, *profiles.values()]
        of_profiles = {name: each.shared for name, each in profiles.items()}
        self.shared = Shared.together(
            of_profiles | {"": Shared.of([(handler.type, handler)])},
            common.shared if common is not None else None,
        )
        """What plugins share with other processes."""
        own_s = handler.max_load_age_s if isinstance(handler, AcceptsOldLoad) else math.inf
        self.max_load_age_s = min(own_s, *(each.max_load_age_s for each in deciding))
        """Age up to which the load of endpoints with known requests will do, see `AcceptsOldLoad`."""
        if kv_source is not None:
            self.max_load_age_s = 0.0  # it reads queues

    @property
    def handler(self) -> Handler:
        """Return the handler."""
        return self._handler

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Return name -> profile, in the order of the configuration."""
        return self._profiles

    @property
    def scorers(self) -> tuple[tuple[str, Scorer, float], ...]:
        """Return (`profile/name`, scorer, weight) of all profiles, in their order."""
        return tuple(
            (qualified(profile, name), scorer, weight)
            for profile, each in self._profiles.items()
            for name, scorer, weight in each.scorers
        )

    @property
    def predictor(self) -> tuple[str, Predictor] | None:
        """Return name and predictor, None if there is none."""
        return self._common.predictor if self._common is not None else None

    def decide(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Decision:
        """Return the decision of the endpoint that answers, with the placement of the other stages.

        The stages' decisions have the same table. No endpoint is picked if an admitter refused the request, screeners
        dropped all, or the handler found no placement.

        Raises:
            NoCandidatesError: `candidates` is empty.
        Cost: that of each profile which the handler runs.
        """
        if not len(candidates):
            raise NoCandidatesError(f"no endpoint to score for model {request.model!r}")
        first: Decision | None = None
        if self._common is not None:
            first = self._common.decide(request, candidates, rng=rng)
            if not first.picked:
                return first

        def run(profile: str, *, peer: Candidate | None = None) -> Decision:
            view = request if peer is None else replace(request, peer_labels=peer.labels)
            return self._profiles[profile].decide(view, candidates, rng=rng, after=first)

        decision = self._handler.place(request, candidates if first is None else first.kept, run, rng=rng)
        if self._kv_source is not None and decision.picked:
            decision = self._kv_source.named(decision, next(iter(self._profiles)), candidates, rng=rng)
        if first is not None and first.faults:
            decision = replace(decision, faults=first.faults + decision.faults)
        return decision

    def is_screened(self, decision: Decision) -> bool:
        """Return whether a screener dropped the last candidates of a decision that picked none."""
        return self._common is not None and self._common.is_screened(decision)

    def picked(self, request: RequestView, decision: Decision) -> tuple[PluginFault, ...]:
        """Call the plugins after the request was routed; return the faults of those that raised."""
        calls = (profile.picked(request, each) for profile, each in self._parts(decision))
        faults = tuple(fault for faults in calls for fault in faults)
        return faults + self._learners.picked(request, decision)

    def answered(self, decision: Decision, *, ttft_s: float) -> tuple[PluginFault, ...]:
        """Call with the time to first token: the handler, what acts once, and what chose the endpoint that computed the prompt."""
        computing = decision.computing
        calls = (
            profile.answered(each, ttft_s=ttft_s)
            for profile, each in self._parts(decision)
            if each is computing or profile is self._common
        )
        faults = tuple(fault for faults in calls for fault in faults)
        return faults + self._learners.answered(decision, ttft_s=ttft_s)

    def ended(
        self,
        decision: Decision,
        *,
        tpot_s: float | None,
        n_output: int | None = None,
        is_refused: bool = False,
    ) -> tuple[PluginFault, ...]:
        """Call the plugins after a routed request ended; only those of the endpoint that answers get `tpot_s` and `n_output`."""
        calls = (
            profile.ended(each, tpot_s=tpot_s, n_output=n_output, is_refused=is_refused)
            if each is decision
            else profile.ended(each, tpot_s=None, is_refused=is_refused)
            for profile, each in self._parts(decision)
        )
        faults = tuple(fault for faults in calls for fault in faults)
        return faults + self._learners.ended(
            decision, tpot_s=tpot_s, n_output=n_output, is_refused=is_refused
        )

    def response_headers(self, decision: Decision) -> tuple[dict[str, str], tuple[PluginFault, ...]]:
        """Return the headers that plugins set on the response of the endpoint that answers, and their faults."""
        headers: dict[str, str] = {}
        faults: tuple[PluginFault, ...] = ()
        for profile, each in self._parts(decision):
            if each is decision:
                marked, more = profile.response_headers(each)
                headers |= marked
                faults += more
        return headers, faults

    def _parts(self, decision: Decision) -> Iterator[tuple[Profile, Decision]]:
        """Yield each profile that decided, with its decision.

        A shadow follows the decisions of another configuration: profiles that only the other one has are left out, here and at
        each later callback alike.
        """
        if self._common is not None:
            yield self._common, decision
        placement = decision.placement
        if placement is None:  # another configuration's, which this one shadows
            yield next(iter(self._profiles.values())), decision
            return
        if (profile := self._profiles.get(placement.profile)) is not None:
            yield profile, decision
        for stage in placement.stages:
            if (profile := self._profiles.get(stage.profile)) is not None:
                yield profile, stage.decision


Deciding: TypeAlias = Profile | Scheduler
"""What decides on requests: one profile, or several with a handler."""
