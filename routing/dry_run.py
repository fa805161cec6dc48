"""Decisions without routing: a prompt in, the decision it would get out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial

from ..configs.section import MAX_NAME_CHARS
from ..scorers.core.decision import Decision
from ..tokenization.errors import BodyFormatError
from ..tokenization.requests.cost import LIGHT_BYTES, heavy
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
        token_ids: as decoded JSON, or an array of ids.
        keys: chained block keys.
        block_size: tokens per block of the keys, None for every size in use.
        cache_salt: as in a request; ignored for keys.
        n_bytes: length of the question, by which it is read in a thread.
    """

    model: str = ""
    text: str | None = None
    messages: object = None
    token_ids: object = None
    keys: array[int] | None = None
    block_size: int | None = None
    cache_salt: str | None = None
    n_bytes: int = 0


async def dry_run(picker: Picker, query: PromptQuery) -> Decision | None:
    """Return the decision that the prompt would get; None if there is no endpoint.

    Raises:
        RequestError: there is no prompt, or it has the wrong form, or the model's name is too long.
        NotReadError: the question is long, and was not read in time.
    """
    atlas = picker.fleet.atlas
    if len(query.model) > MAX_NAME_CHARS:
        raise BodyFormatError(f"the model's name has more than {MAX_NAME_CHARS} characters")
    if query.keys is not None:
        return picker.decide(model=query.model, prefix=prefix_of_keys(query.keys, query.block_size, atlas))
    ask = partial(
        direct_request,
        model=query.model,
        text=query.text,
        messages=query.messages,
        token_ids=query.token_ids,
        cache_salt=query.cache_salt,
    )
    if query.n_bytes <= LIGHT_BYTES:
        request = ask()
    else:
        reader = picker.reader
        request = await reader.run(lambda: heavy(ask(), reader.max_cost), n_bytes=query.n_bytes)
    prompt = await picker.pipeline.tokenize(request)
    prefix = prefix_of_prompt(prompt, atlas)
    return picker.decide(model=query.model, prefix=prefix, prompt=prompt, parsed=request)
