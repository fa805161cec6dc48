"""Request headers that tell the sidecar of an endpoint which endpoints do the other stages of a request.

Source: names and forms are those of the reference's sidecar.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .decision import ENCODE, PREFILL, Stage

PREFILLER_HEADER = "x-prefiller-host-port"
"""`host:port` of the endpoint that computes the prompt."""

ENCODERS_HEADER = "x-encoder-hosts-ports"
"""`host:port` of each endpoint that encodes media, with commas between."""

DATA_PARALLEL_HEADER = "x-data-parallel-host-port"
"""`host:port` of the data-parallel rank, of which the sidecar is behind another port."""

KV_SOURCE_HEADER = "x-kv-cache-source-host-port"
"""`host:port` of the endpoint from which cached blocks are pulled to the one that computes the prompt."""


@dataclass(frozen=True, slots=True)
class StageHeaders:
    """Writer of the headers of stages.

    Attributes:
        prefill_profile: profile of which the first endpoint computes the prompt.
        encode_profile: profile of which the endpoints encode media.
    """

    prefill_profile: str = PREFILL
    encode_profile: str = ENCODE

    def of(self, stages: Iterable[Stage]) -> dict[str, str]:
        """Return lower-case name -> value for the stages of these profiles."""
        headers: dict[str, str] = {}
        for each in stages:
            if each.profile == self.prefill_profile:
                headers[PREFILLER_HEADER] = each.decision.best.address
            elif each.profile == self.encode_profile:
                headers[ENCODERS_HEADER] = ",".join(each.decision.picked_addresses)
        return headers
