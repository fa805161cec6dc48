"""The report of `kvatlas shadow`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ....api.rest.models import ChangedOut
from ....api.rest.shadow_models import MeanOut, ShadowOut
from ....configs.section import PolicyName
from ..client import Client


def fetch_shadow(client: Client) -> ShadowOut:
    """Return the comparison of the shadow's decisions with the real ones.

    Raises:
        AskError: as of `Client.require`.
    """
    return client.require("/v1/shadow", ShadowOut)


def set_shadow(client: Client, policy: PolicyName | None) -> None:
    """Have a policy compared from now on; None for none.

    Raises:
        AskError: as of `Client.put`.
    """
    client.put("/v1/shadow", {"policy": policy}, ChangedOut)


def print_shadow(console: Console, found: ShadowOut) -> None:
    """Print how often the shadow differs, the expected gain, and the terms that make the difference."""
    for line in _lines(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _lines(found: ShadowOut) -> Iterator[str]:
    name = f"policy {found.policy}" if found.policy is not None else found.file
    if name is None:
        yield "there is no shadow; kvatlas shadow --policy latency compares that policy, shadow.file a configuration"
        return
    if found.refusal is not None:
        yield f"{name} does not decide: {found.refusal}"
    if found.disagreement is None:
        yield f"{name}: no request was compared yet"
        return
    n_compared = found.requests["agreed"] + found.requests["disagreed"]
    rate = found.disagreement
    yield f"{name}: {n_compared} requests in {found.seconds:.0f} s"
    yield f"picks another endpoint  {rate.share:.1%} of requests ({rate.low:.1%} to {rate.high:.1%})"
    if found.cached_gain_tokens is not None:
        yield f"tokens cached           {_mean(found.cached_gain_tokens, 1, '.1f')} a request"
    for tier in dict.fromkeys((*found.live_tokens, *found.shadow_tokens)):
        shares = (
            books.get(tier, 0) / max(1, found.prompt_tokens)
            for books in (found.live_tokens, found.shadow_tokens)
        )
        live, shadow = shares
        yield f"  in {tier:<18} {live:.1%} of prompt tokens, {shadow:.1%} by the shadow"
    yield from _first_token(found)
    for name, term in found.terms.items():
        yield f"  {name:<21} {_mean(term, 1, '.3f')} for its picks, where they differ"
    for outcome, text in _NOT_COMPARED.items():
        if count := found.requests.get(outcome):
            yield f"{count} requests {text}"
    if found.faults:
        yield f"{found.faults} answers of its plugins had to be repaired"


def _first_token(found: ShadowOut) -> Iterator[str]:
    if found.ttft_gain_seconds is None:
        yield "first token             not predicted yet: needs more streamed responses"
        return
    yield f"first token             {_mean(found.ttft_gain_seconds, 1000, '.1f')} ms sooner"
    if found.live_ttft_seconds is not None and found.shadow_ttft_seconds is not None:
        live, shadow = (1000 * each.mean for each in (found.live_ttft_seconds, found.shadow_ttft_seconds))
        yield f"  expected              {live:.1f} ms now, {shadow:.1f} ms by the shadow"
    if found.policy is not None and _is_sure(found.ttft_gain_seconds):
        yield f"switch                  kvatlas policy {found.policy}, or policy: {found.policy} in the configuration"


def _is_sure(gain: MeanOut) -> bool:
    """Return whether the whole interval of a gain is above 0."""
    return gain.margin is not None and gain.mean > gain.margin


_NOT_COMPARED = {
    "refused": "on which its filters leave nobody",
    "not_chosen": "left out by shadow.fraction",
    "over_budget": "left out by shadow.maxCpu",
}


def _mean(mean: MeanOut, factor: float, form: str) -> str:
    margin = "" if mean.margin is None else f" ± {format(factor * mean.margin, form)}"
    return f"{format(factor * mean.mean, '+' + form)}{margin}"
