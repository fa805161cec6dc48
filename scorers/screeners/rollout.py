"""`disaggregatedset-rollout-screener`: keeps a request within one revision of a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Verdicts
from ..core.registry import Registry
from ..errors import ParametersError
from .selector import LabelSelector

Text = Annotated[str, Meta(min_length=1, max_length=317)]


class ScopeParams(PluginParams, frozen=True):
    """`scope`."""

    label_selector: Text
    """Label selector of the endpoints that count, such as `disaggregatedset.x-k8s.io/name=my-set`."""


class HeaderSelectorParams(PluginParams, frozen=True):
    """One entry of `headerSelectors`."""

    name: Text
    """Name of the entry, unique."""
    header_name: Text
    """Header of the request that selects by the label, and of the response, which gets the label of the picked endpoint."""
    label_key: Text
    """The label."""
    mode: Literal["strict", "prefer"]
    """strict: endpoints with another value are dropped; prefer: only the response gets the header."""


class RequiredRolesParams(PluginParams, frozen=True):
    """`requireRoles`."""

    values: tuple[Text, ...] = ()
    """Roles without which a revision takes no requests; needed unless the mode is disabled."""


class RevisionGatingParams(PluginParams, frozen=True):
    """`revisionGating`."""

    mode: Literal["sum", "max-role", "disabled"]
    """Weight of a revision: all endpoints of the required roles, those of the largest role, or no choice of a revision."""
    require_roles: RequiredRolesParams = RequiredRolesParams()
    """Required roles."""
    revision_label_key: Text = "disaggregatedset.x-k8s.io/revision"
    """Label with the revision."""
    role_label_key: Text = "disaggregatedset.x-k8s.io/role"
    """Label with the role."""


class RolloutParams(PluginParams, frozen=True):
    """Parameters of `disaggregatedset-rollout-screener`."""

    scope: ScopeParams
    """Endpoints that count."""
    revision_gating: RevisionGatingParams
    """Choice of a revision."""
    header_selectors: tuple[HeaderSelectorParams, ...] = field(default_factory=tuple)
    """Headers and their labels."""


class RolloutScreener:
    """Filter that keeps the endpoints of one revision, drawn by weight unless a strict header selects.

    A revision without an endpoint of a required role has weight 0, and its endpoints are dropped. Endpoints are counted
    among the candidates.

    Args:
        params: as configured.
        selector: selects the endpoints that count.
    """

    type = "disaggregatedset-rollout-screener"

    def __init__(self, params: RolloutParams, selector: LabelSelector) -> None:
        self._gating, self._selector = params.revision_gating, selector
        self._headers = [(each.header_name.lower(), each) for each in params.header_selectors]
        self._strict = [(name, each.label_key) for name, each in self._headers if each.mode == "strict"]

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:
        """Return one verdict per candidate."""
        keep = np.ones(len(candidates), np.bool_)
        wanted = {key: value for name, key in self._strict if (value := request.headers.get(name))}
        if self._gating.mode != "disabled":
            weights = self._weights(candidates)
            allowed = set(weights) if wanted else {_drawn(weights, rng())}
            revisions = candidates.labelled(self._gating.revision_label_key)
            keep &= revisions.where(lambda revision: revision is not None and revision in allowed)
        for key, value in wanted.items():
            keep &= candidates.labelled(key).where(value.__eq__)
        return Verdicts(keep, lambda dropped: [self._reason(labels, wanted) for labels in dropped.labels])

    def response_headers(self, decision: Decision) -> Mapping[str, str]:
        """Return the labels of the picked endpoint by the headers of the selectors."""
        labels = decision.best.labels
        return {name: labels[each.label_key] for name, each in self._headers if each.label_key in labels}

    def _weights(self, candidates: Candidates) -> dict[str, int]:
        """Return revision -> weight, of those with every required role, sorted by name."""
        gating, roles = self._gating, self._gating.require_roles.values
        counts: dict[str, dict[str, int]] = {}
        for labels in candidates.labels:
            revision, role = labels.get(gating.revision_label_key), labels.get(gating.role_label_key)
            if revision and role in roles and self._selector.selects(labels):
                of_role = counts.setdefault(revision, {})
                of_role[role] = of_role.get(role, 0) + 1
        covered = {
            revision: counts[revision] for revision in sorted(counts) if len(counts[revision]) == len(roles)
        }
        if gating.mode == "sum":
            return {revision: sum(of_role.values()) for revision, of_role in covered.items()}
        largest = max(roles, key=lambda role: sum(of_role[role] for of_role in covered.values()))
        return {revision: of_role[largest] for revision, of_role in covered.items()}

    def _reason(self, labels: Mapping[str, str], wanted: Mapping[str, str]) -> str:
        for key, value in wanted.items():
            if labels.get(key) != value:
                return f"label {key} is {labels.get(key)!r}, want {value!r}"
        key = self._gating.revision_label_key
        return f"label {key} is {labels.get(key)!r}, which lacks a role or was not drawn"


def _drawn(weights: Mapping[str, int], draw: float) -> str:
    """Return one of the revisions by weight, empty if there is none."""
    place = draw * sum(weights.values())
    for revision, weight in weights.items():
        place -= weight
        if place < 0:
            return revision
    return next(reversed(tuple(weights)), "")


def register(registry: Registry) -> None:
    """Register `disaggregatedset-rollout-screener`."""
    registry.screeners.add(RolloutScreener.type, RolloutParams, _make)


def _make(params: RolloutParams, _: BuildContext) -> RolloutScreener:
    roles = params.revision_gating.require_roles.values
    if params.revision_gating.mode != "disabled" and not roles:
        raise ParametersError("found no roles, expected those that a revision needs", "revisionGating")
    _check_unique([each.name for each in params.header_selectors], "name")
    _check_unique([each.header_name.lower() for each in params.header_selectors], "headerName")
    _check_unique(roles, "role")
    try:
        selector = LabelSelector.parse(params.scope.label_selector)
    except ValueError as error:
        raise ParametersError(str(error), "scope") from error
    return RolloutScreener(params, selector)


def _check_unique(values: Sequence[str], noun: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ParametersError(f"found the {noun} {value!r} twice; keep one")
