"""Several models behind one kvatlas: each request uses the tokenizer and the servers of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.models import TINY, make_models
from support.serve import serving

ENDPOINTS = {"red-0": "red", "red-1": "red", "blue-0": "blue"}


def config(folder: Path) -> dict[str, Any]:
    tokenizers = {"red": TINY, "blue": make_models(folder)["bos"]}
    return {
        "models": [
            {"names": [name], "tokenizer": str(path), "endpointLabels": {"model": name}}
            for name, path in tokenizers.items()
        ],
        "endpoints": {
            "static": [
                {
                    "name": name,
                    "address": f"127.0.0.1:{9000 + number}",
                    "labels": {"model": model},
                    "events": "",
                    "metrics": "",
                }
                for number, (name, model) in enumerate(ENDPOINTS.items())
            ]
        },
    }


async def test_request_is_scored_on_the_servers_of_its_model(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as served:
        answers = {
            model: await served.post("/v1/score", {"model": model, "prompt": "hello"})
            for model in ("red", "blue", "green")
        }

    candidates = {model: {each["name"] for each in answer["endpoints"]} for model, answer in answers.items()}
    assert candidates == {"red": {"red-0", "red-1"}, "blue": {"blue-0"}, "green": set(ENDPOINTS)}
    assert answers["blue"]["tokens"] == answers["red"]["tokens"] + 1  # its tokenizer adds a BOS token
    assert answers["green"]["noPrefixReason"] == "unknown_model"
