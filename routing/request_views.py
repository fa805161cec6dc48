"""A request as the plugins of one policy see it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from ..indexer.prefix import Prefix
from ..scorers.core.model import BurstPlace, RequestView
from ..tokenization.media import media_ids
from ..tokenization.model import ParsedRequest, Prompt
from ..tokenization.requests.output_limit import output_limit
from .policy import Policy


def request_view(
    model: str,
    prefix: Prefix | None,
    headers: Mapping[str, str] | None = None,
    *,
    prompt: Prompt | None = None,
    priority: int = 0,
    has_body: bool = True,
) -> RequestView:
    """Return a request as scorers see it, at the present time.

    Args:
        model: as the client named it.
        prefix: block keys of the prompt, None if it has none.
        headers: of the request, None if it did not come by HTTP.
        priority: priority of its objective.
        has_body: whether the client sent a body.
        prompt: the prompt, from which its tokens are estimated if their ids are missing or cut; None if it is not known.
    """
    n_tokens = prefix.n_tokens if prefix is not None else 0
    is_estimated = False
    if prompt is not None and prompt.tokens is None:
        is_estimated, n_tokens = True, prompt.n_estimated
    elif prompt is not None and prompt.cut is not None:
        is_estimated, n_tokens = True, max(n_tokens, prompt.n_estimated)
    return RequestView(
        model=model,
        now=time.monotonic(),
        n_tokens=n_tokens,
        headers=headers or {},
        priority=priority,
        is_estimated=is_estimated,
        prefix=prefix,
        has_body=has_body,
        is_streamed=prompt is None or prompt.stream,
        extent=prompt.extent if prompt is not None else 1.0,
    )


def completed_view(
    view: RequestView, policy: Policy, parsed: ParsedRequest | None, burst: BurstPlace | None = None
) -> RequestView:
    """Return a view with what the policy's plugins read beside; the same view if they read nothing of the body.

    Args:
        view: of the request.
        policy: decides on the request.
        parsed: the request, None if its body was not read.
        burst: where the request is assigned together with others, None for nowhere.
    """
    load = policy.load
    if load is not None:
        asked = output_limit(parsed.raw.body) if parsed is not None and parsed.raw is not None else None
        view = replace(view, output_tokens=load.output_tokens(view.n_tokens, asked=asked))
    if policy.profile.reads_media and parsed is not None:
        view = replace(view, media=media_ids(parsed.prompt))
    return view if burst is None else replace(view, burst=burst)
