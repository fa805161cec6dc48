"""The question and the report of `kvatlas query`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ...api.rest.decision_models import PrefixOut, ScoredEndpointOut, ScoreResponse
from ..errors import AskError
from .client import Client
from .top.names import clean

Question = dict[str, object]


def make_question(
    model: str, *, prompt: str | None, messages: Path | None, token_ids: Path | None
) -> Question:
    """Return the body of `/v1/score`.

    Args:
        model: as requests name it.
        prompt: text.
        messages: JSON file with chat messages, `-` for standard input.
        token_ids: JSON file with token ids, the same.
    Raises:
        AskError: not just one of the three is given, or a file cannot be read.
    """
    forms: Question = {
        name: value
        for name, value in (
            ("prompt", prompt),
            ("messages", _read("--messages", messages)),
            ("token_ids", _read("--token-ids", token_ids)),
        )
        if value is not None
    }
    if len(forms) != 1:
        raise AskError("give one of --prompt, --messages and --token-ids")
    return {"model": model, **forms}


def fetch_score(client: Client, question: Question) -> ScoreResponse:
    """Return the decision that the prompt would get.

    Raises:
        AskError: as of `Client.post`.
    """
    found = client.post("/v1/score", question, ScoreResponse)
    if found is None:
        raise AskError(f"{client.url}: knows no /v1/score; see --url")
    return found


def print_score(console: Console, found: ScoreResponse) -> None:
    """Print a row per endpoint, longest prefix first."""
    console.print(
        f"{clean(found.model) or 'the model'}, {found.tokens} tokens", highlight=False, markup=False
    )
    if found.no_prefix_reason is not None:
        console.print(f"no prefix: {found.no_prefix_reason}", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    tiers = list(
        dict.fromkeys(tier for each in found.endpoints if each.prefix for tier in each.prefix.tier_tokens)
    )
    table.add_column("endpoint", overflow="fold")
    for heading in ("reusable", *tiers, "score"):
        table.add_column(heading, justify="right")
    for heading in ("blocks", "trust"):
        table.add_column(heading, overflow="fold")
    for endpoint in sorted(found.endpoints, key=lambda each: -_usable(each)):
        held = endpoint.prefix.tier_tokens if endpoint.prefix else {}
        cells = [str(_usable(endpoint)), *(str(held.get(tier, 0)) for tier in tiers), f"{endpoint.total:.4g}"]
        table.add_row(endpoint.name, *cells, _runs(endpoint.prefix), endpoint.trust)
    console.print(table, highlight=False)


def _usable(endpoint: ScoredEndpointOut) -> int:
    return endpoint.prefix.usable_tokens if endpoint.prefix else 0


def _runs(prefix: PrefixOut | None) -> str:
    return " ".join(f"{run.blocks} {run.tier}" for run in prefix.runs) if prefix else ""


def _read(option: str, file: Path | None) -> object:
    if file is None:
        return None
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return msgspec.json.decode(text)
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        raise AskError(f"{option}: {file} cannot be used: {error}") from error
