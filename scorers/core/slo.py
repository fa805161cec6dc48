"""Service level objectives that clients name in headers: the longest times that they find acceptable."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""Headers with the longest acceptable time to the first token, in milliseconds; the newer name wins."""

TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Headers with the longest acceptable time per output token after the first, in milliseconds; the newer name wins."""

SLO_HEADERS = (*TTFT_HEADERS, *TPOT_HEADERS)

LEAST_MS, MOST_MS = 0.001, 1e9
"""Range of objectives, a microsecond to twelve days: ratios to expected times, and products with factors, stay finite."""


class Slo(msgspec.Struct, frozen=True, gc=False):
    """The objectives of one request; at least one is named.

    Attributes:
        ttft_ms: longest acceptable milliseconds to the first token, None if not named.
        tpot_ms: longest acceptable milliseconds per output token after the first, None if not named.
    """

    ttft_ms: float | None
    tpot_ms: float | None


def slo_of(headers: Mapping[str, str]) -> Slo | None:
    """Return the objectives of a request, None if it names none.

    A value that is no finite number above 0 is ignored; one outside of `LEAST_MS` to `MOST_MS` counts as the nearer of them.

    Args:
        headers: lower-case name -> value.
    """
    get = headers.get
    ttft = get(TTFT_HEADERS[0]) or get(TTFT_HEADERS[1])
    tpot = get(TPOT_HEADERS[0]) or get(TPOT_HEADERS[1])
    if not ttft and not tpot:
        return None
    slo = Slo(_milliseconds(ttft), _milliseconds(tpot))
    return None if slo.ttft_ms is None and slo.tpot_ms is None else slo


def _milliseconds(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return min(max(number, LEAST_MS), MOST_MS) if 0.0 < number < math.inf else None
