"""`decode-filter`, `prefill-filter`, `encode-filter`: keep endpoints whose role includes a stage of requests."""

from __future__ import annotations

import math
from collections.abc import Collection

from ..core.base import Rng
from ..core.candidates import Candidates, LabelColumn
from ..core.columns import Mask
from ..core.model import RequestView
from ..core.params import NoParams
from ..core.ratings import Verdicts
from ..core.registry import Registry

ROLE_LABEL = "llm-d.ai/role"
"""Label with the role of an endpoint; its values are compared exactly."""

DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
PREFILL_ROLES = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})
ENCODE_ROLES = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


class RoleFilter:
    """Filter that drops endpoints whose label `llm-d.ai/role` has none of some values.

    Args:
        plugin_type: name of the filter in configurations.
        stage: what the kept endpoints do, as a verb for messages.
        roles: values with which an endpoint is kept; with None, endpoints without the label are kept.
    """

    max_load_age_s = math.inf

    def __init__(self, plugin_type: str, stage: str, roles: Collection[str | None]) -> None:
        self.type = plugin_type
        self._stage, self._roles = stage, frozenset(roles)
        self._judged: tuple[LabelColumn, Mask] | None = None

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        column, judged = candidates.labelled(ROLE_LABEL), self._judged
        # the column is the same until the fleet changes, if no filter came before
        if judged is None or judged[0] is not column:
            judged = self._judged = column, column.where(self._roles.__contains__)
        return Verdicts(judged[1], self._reasons)

    def _reasons(self, dropped: Candidates) -> list[str]:
        return [
            f"label {ROLE_LABEL} is {labels[ROLE_LABEL]!r}, which does not {self._stage}"
            if ROLE_LABEL in labels
            else f"without label {ROLE_LABEL}, so it does not {self._stage}"
            for labels in dropped.labels
        ]


def decode_filter() -> RoleFilter:
    """Return the filter of endpoints that decode; those without the label do."""
    return RoleFilter("decode-filter", "decode", {*DECODE_ROLES, None})


def prefill_filter() -> RoleFilter:
    """Return the filter of endpoints that prefill."""
    return RoleFilter("prefill-filter", "prefill", PREFILL_ROLES)


def encode_filter() -> RoleFilter:
    """Return the filter of endpoints that encode media."""
    return RoleFilter("encode-filter", "encode", ENCODE_ROLES)


def register(registry: Registry) -> None:
    """Register the three filters, which take no parameters."""
    registry.filters.add("decode-filter", NoParams, lambda _params, _context: decode_filter())
    registry.filters.add("prefill-filter", NoParams, lambda _params, _context: prefill_filter())
    registry.filters.add("encode-filter", NoParams, lambda _params, _context: encode_filter())
