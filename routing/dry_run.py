"""Decisions without routing: a prompt in, the decision it would get out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ..scorers.core.decision import Decision
from ..tokenization.requests.request import direct_request
from .picker import Picker
from .prefixes import prefix_of_keys, prefix_of_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQuery:
    """A prompt in one of its forms. Keys win over token ids, token ids over messages, and messages over text.

    Attributes:
        model: name, or the name of a LoRA adapter.
        text: as the prompt of a completion.
        messages: as decoded JSON.
        token_ids: as decoded JSON.
        keys: chained block keys.
        block_size: tokens per block of the keys, None for every size in use.
        cache_salt: as in a request; ignored for keys.
    """

    model: str = ""
    text: str | None = None
    messages: object = None
    token_ids: object = None
    keys: array[int] | None = None
    block_size: int | None = None
    cache_salt: str | None = None


async def dry_run(picker: Picker, query: PromptQuery) -> Decision | None:
    """Return the decision that the prompt would get; None if there is no endpoint.

    Raises:
        RequestError: there is no prompt, or it has the wrong form.
    """
    atlas = picker.fleet.atlas
    if query.keys is not None:
        return picker.decide(model=query.model, prefix=prefix_of_keys(query.keys, query.block_size, atlas))
    request = direct_request(
        model=query.model,
        text=query.text,
        messages=query.messages,
        token_ids=query.token_ids,
        cache_salt=query.cache_salt,
    )
    prompt = await picker.pipeline.tokenize(request)
    return picker.decide(model=query.model, prefix=prefix_of_prompt(prompt, atlas), prompt=prompt)
