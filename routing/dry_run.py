"""What a caller asks about a prompt without routing it, over whatever protocol."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ..indexer.atlas import Atlas
from ..indexer.prefix import Prefix
from ..scorers.core.decision import Decision
from ..tokenization.requests.request import direct_request
from .picker import Picker


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt in one of its forms. Of several, keys win over token ids, these over messages, and these over text.

    Attributes:
        model: name, or the name of a LoRA adapter.
        text: as the prompt of a completion.
        messages: as decoded JSON.
        token_ids: as decoded JSON.
        keys: chained block keys.
        block_size: tokens of their blocks, None for every size in use.
        cache_salt: as in a request; not for keys.
    """

    model: str = ""
    text: str | None = None
    messages: object = None
    token_ids: object = None
    keys: array[int] | None = None
    block_size: int | None = None
    cache_salt: str | None = None


async def decided(picker: Picker, question: Question) -> Decision | None:
    """The decision the prompt would get; None when there is no endpoint.

    Raises:
        RequestError: it has no prompt, or one of the wrong form.
    """
    if question.keys is not None:
        prefix = prefix_of_keys(question.keys, question.block_size, picker.fleet.atlas)
        return picker.decide(model=question.model, prefix=prefix)
    given = direct_request(
        model=question.model,
        text=question.text,
        messages=question.messages,
        token_ids=question.token_ids,
        cache_salt=question.cache_salt,
    )
    prompt = await picker.pipeline.tokenize(given)
    return picker.decide(model=question.model, prefix=picker.prefix(prompt), prompt=prompt)


def prefix_of_keys(keys: array[int], block_size: int | None, atlas: Atlas) -> Prefix:
    """A prefix of known keys, at the block size named or at every one in use."""
    sizes = [block_size] if block_size is not None else atlas.block_sizes
    return Prefix.from_keys(dict.fromkeys(sizes, keys))
