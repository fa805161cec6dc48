"""`prefix-based-pd-decider`: a prefill stage for prompts of which the decode server has too little."""

from __future__ import annotations

from typing import Annotated

from ..core.ignored import Ignored
from ..core.model import Candidate, RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..producers import Limit


class PrefixBasedParams(PluginParams, frozen=True):
    """Parameters of `prefix-based-pd-decider`."""

    non_cached_tokens: Limit = 0
    """Prompt tokens that the decode server would have to compute, from which on they are computed elsewhere; 0: never."""
    prompt_tokens: Limit = 0
    """Shortest prompt, in tokens, that is computed elsewhere."""
    prefix_match_info_producer_name: Annotated[
        str, Ignored("all that is known of the decode server's cache counts, whichever producer knows it")
    ] = ""
    """Accepted without effect: all that is known of the decode server's cache counts."""


class PrefixBasedDecider:
    """Decider that wants a prefill stage if the decode server would have to compute many tokens.

    Args:
        uncached_tokens: tokens from which on; 0 for never.
        prompt_tokens: length of the prompt from which on.
    """

    type = "prefix-based-pd-decider"

    def __init__(self, uncached_tokens: int, prompt_tokens: int = 0) -> None:
        self._uncached, self._prompt = uncached_tokens, prompt_tokens

    def wants(self, request: RequestView, endpoint: Candidate | None) -> bool:
        """Return whether at least so many tokens are uncached; False while no decode server is chosen."""
        if not self._uncached or endpoint is None or request.n_tokens < self._prompt:
            return False
        return endpoint.uncached_tokens(request) >= self._uncached


def register(registry: Registry) -> None:
    """Register `prefix-based-pd-decider`."""
    registry.deciders.add(PrefixBasedDecider.type, PrefixBasedParams, _make)


def _make(params: PrefixBasedParams, _: BuildContext) -> PrefixBasedDecider:
    return PrefixBasedDecider(params.non_cached_tokens, params.prompt_tokens)
