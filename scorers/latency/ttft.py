"""Expected time to first token of each endpoint, with costs that are learned from observed times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from .arithmetic import Quantities
from .features import ATTENTION_TOKENS, Typical, features
from .groups import FitReport, GroupedFits
from .lines import ATTENTION, MILLION, N_FEATURES, PREFILL
from .params import LatencyCostParams

DEFAULT_LOAD_SPEEDS = (100_000.0, 20_000.0)
"""Tokens loaded per second, by position after the first tier; the last applies to every further tier. The first is 26 GB/s
for a model of 256 KiB per token, a common speed of host memory; the second is a fast shared file system."""

BATCH_MS = 0.5
"""Milliseconds by which each request beside it delays a first token, before anything is learned: its part of a step."""

MEMORY_SHARE = 1.0
"""Part of the time for which requests hold the blocks of a GPU until as many blocks are free, before anything is learned."""

LEAST_MEMORY = 0.3
"""Least factor of that. Requests that find blocks sooner than expected weigh more in a fit than those that wait as much longer: a few of
them would make a wait for blocks look like nothing. With 0.4 or more, requests of the workload `tiered/cpu` leave their prefix for fear of
waits that turn out short."""

NO_MORE: Mapping[str, float] = MappingProxyType({})

ADAPTER_MS = 100.0
"""Milliseconds to load an adapter, before anything is learned: some 100 MB from a disk."""


class TtftCosts:
    """Model of the time to first token: a cost for each of `features`, learned for each group of endpoints.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
        more: costs of further features -> prior; they follow those of `features`.

    Attributes:
        fits: the costs; their names are those of the features.
        n_features: features of one endpoint, without further ones.
    """

    def __init__(
        self, params: LatencyCostParams, tiers: Sequence[str], *, more: Mapping[str, float] = NO_MORE
    ) -> None:
        self._tiers = tuple(tiers)
        prefill_ms = 1000.0 / params.prefill_tokens_per_second
        given, last = params.load_tokens_per_second, len(DEFAULT_LOAD_SPEEDS) - 1
        loads_ms = {
            _load(tier): 1000.0 / given.get(tier, DEFAULT_LOAD_SPEEDS[min(place, last)])
            for place, tier in enumerate(self._tiers[1:])
        }
        self.fits = GroupedFits(
            {
                "overhead": params.overhead_ms,
                "queue": prefill_ms,
                "prefill": prefill_ms,
                "attention": prefill_ms * MILLION / ATTENTION_TOKENS,
                "batch": BATCH_MS,
                "memory": MEMORY_SHARE,
                "adapter": ADAPTER_MS,
            }
            | loads_ms
            | dict(more),
            label=params.group_label,
            max_factor=params.max_factor,
            half_life=params.half_life_observations,
            least={"memory": LEAST_MEMORY},
        )
        self.n_features = N_FEATURES + len(loads_ms)

    def quantities(
        self,
        request: RequestView,
        candidates: Candidates,
        accounts: FloatArray,
        *,
        pace: FloatArray | float,
        typical: Typical,
    ) -> Quantities:
        """Return features and costs, whose product is the expected milliseconds, and these; shapes (d, n), (d, n) and (n).

        Args:
            request: the request.
            candidates: the endpoints.
            accounts: see `Accounts.columns`.
            pace: factors of the endpoints, part of the costs.
            typical: see `features`.
        """
        return features(
            request,
            candidates,
            accounts,
            n_tiers=len(self._tiers),
            costs=self.fits.costs(candidates),
            pace=pace,
            typical=typical,
        )

    def work(self, group: str, quantities: Sequence[float]) -> tuple[float, float]:
        """Return what an endpoint of this group does for a prompt: tokens, those of attention included, and milliseconds."""
        costs = self.fits.costs_of(group)
        tokens = quantities[PREFILL] + quantities[ATTENTION] * costs[ATTENTION] / costs[PREFILL]
        return tokens, tokens * costs[PREFILL]

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return [replace(each, credits=self._credits(each.costs_ms)) for each in self.fits.reports()]

    def _credits(self, costs_ms: Mapping[str, float]) -> dict[str, float]:
        return {
            tier: min(1.0, max(0.0, 1.0 - costs_ms[_load(tier)] / costs_ms["prefill"]))
            for tier in self._tiers[1:]
        }


def _load(tier: str) -> str:
    return f"load_{tier}"
