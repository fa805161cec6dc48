"""A client of the servers: one prompt, and what the engine says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from .errors import CheckError
from .model import MODEL_NAME
from .traffic import Prompt


@dataclass(frozen=True, slots=True)
class Reply:
    """Tokens and text of a reply, and the engine's counts of the prompt."""

    tokens: Sequence[int]
    text: str
    n_prompt_tokens: int
    cached: int


async def ask(session: aiohttp.ClientSession, url: str, prompt: Prompt) -> Reply:
    """Send a prompt to a server or a gateway, `http://HOST:PORT`.

    Raises:
        CheckError: the request failed.
    """
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "max_tokens": prompt.reply_tokens,
        "return_token_ids": True,
    }
    if prompt.salt is not None:
        body["cache_salt"] = prompt.salt
    if prompt.tokens is not None:
        answer = await post(session, f"{url}/v1/completions", body | {"prompt": prompt.tokens})
        text = answer["choices"][0]["text"]
    else:
        answer = await post(session, f"{url}/v1/chat/completions", body | {"messages": prompt.messages})
        text = answer["choices"][0]["message"]["content"] or ""
    usage = answer["usage"]
    return Reply(
        tokens=answer["choices"][0]["token_ids"],
        text=text,
        n_prompt_tokens=usage["prompt_tokens"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
    )


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Post JSON and return the JSON of the answer.

    Raises:
        CheckError: the status is not 200.
    """
    async with session.post(url, json=body) as answer:
        if answer.status != 200:
            raise CheckError(f"{url} answered {answer.status}: {(await answer.text())[:300]}")
        reply: dict[str, Any] = await answer.json()
    return reply
