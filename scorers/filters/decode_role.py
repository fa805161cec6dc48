"""`decode-filter`: keeps endpoints that decode, for configurations in which some only prefill."""

from __future__ import annotations

import math

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import NoParams
from ..core.ratings import Verdicts
from ..core.registry import Registry

ROLE_LABEL = "llm-d.ai/role"
DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})


class DecodeFilter:
    """Filter that drops endpoints whose label `llm-d.ai/role` excludes decoding, and keeps those without the label."""

    type = "decode-filter"
    max_load_age_s = math.inf

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        keep = candidates.labelled(ROLE_LABEL).where(lambda role: role is None or role in DECODE_ROLES)
        return Verdicts(keep, _reasons)


def _reasons(dropped: Candidates) -> list[str]:
    return [
        f"label {ROLE_LABEL} is {labels[ROLE_LABEL]!r}, which does not decode" for labels in dropped.labels
    ]


def register(registry: Registry) -> None:
    """Register `decode-filter`, which takes no parameters."""
    registry.filters.add(DecodeFilter.type, NoParams, lambda _params, _context: DecodeFilter())
