"""The report of `kvatlas shadow`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ....api.rest.shadow_models import MeanOut, ShadowOut
from ..client import Client


def fetch_shadow(client: Client) -> ShadowOut:
    """Return the comparison of the shadow's decisions with the real ones.

    Raises:
        AskError: as of `Client.require`.
    """
    return client.require("/v1/shadow", ShadowOut)


def print_shadow(console: Console, found: ShadowOut) -> None:
    """Print how often the shadow differs, the expected gain, and the terms that make the difference."""
    for line in _lines(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _lines(found: ShadowOut) -> Iterator[str]:
    if found.file is None:
        yield "there is no shadow; shadow.file names its configuration"
        return
    if found.refusal is not None:
        yield f"{found.file} does not decide: {found.refusal}"
    if found.disagreement is None:
        yield f"{found.file}: no request was compared yet"
        return
    n_compared = found.requests["agreed"] + found.requests["disagreed"]
    rate = found.disagreement
    yield f"{found.file}: {n_compared} requests in {found.seconds:.0f} s"
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
    if found.ttft_gain_seconds is not None:
        yield f"first token             {_mean(found.ttft_gain_seconds, 1000, '.1f')} ms sooner"
    for name, term in found.terms.items():
        yield f"  {name:<21} {_mean(term, 1, '.3f')} for its picks, where they differ"
    for outcome, text in _NOT_COMPARED.items():
        if count := found.requests.get(outcome):
            yield f"{count} requests {text}"
    if found.faults:
        yield f"{found.faults} answers of its plugins had to be repaired"


_NOT_COMPARED = {
    "refused": "on which its filters leave nobody",
    "not_chosen": "left out by shadow.fraction",
    "over_budget": "left out by shadow.maxCpu",
}


def _mean(mean: MeanOut, factor: float, form: str) -> str:
    margin = "" if mean.margin is None else f" ± {format(factor * mean.margin, form)}"
    return f"{format(factor * mean.mean, '+' + form)}{margin}"
