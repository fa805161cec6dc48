"""Predictions of a process, compared with those of an index that has all events."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kvatlas.events.wire import decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.recording import AnsweredRequest, Parts
from support.serve import Served


def whole(messages: Iterable[Parts]) -> Atlas:
    """Return an index with all events of endpoint `vllm`."""
    specs = [TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=REFERENCE)
    atlas.add("vllm")
    for _, _, payload in messages:
        atlas.apply("vllm", 0, decode_batch(payload).events)
    return atlas


async def wrong_answers(served: Served, atlas: Atlas, requests: list[AnsweredRequest]) -> list[int]:
    """Return the numbers of the requests for which the process and the atlas predict different prefixes."""
    wrong: list[int] = []
    for request in requests:
        lora = None if request.model == "tiny" else request.model
        prefix = Prefix(array("I", request.tokens), lora=lora, salt=request.salt)
        body = {"model": request.model, "token_ids": request.tokens, "cache_salt": request.salt}
        answer = (await served.post("/query", body))["default"]["vllm"]
        if answer["longest_matched"] != atlas.match(prefix)["vllm"].usable_tokens:
            wrong.append(request.i)
    return wrong
