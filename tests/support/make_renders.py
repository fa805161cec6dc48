"""Generator of the expected results in `tests/unit/tokenization/vllm_renders.jsonl`.

Usage, from the repository: `PYTHONPATH=tests .venv/bin/python -m support.make_renders PATH/TO/vllm [MODEL ...]`, with vLLM
0.32.0 and torchvision. A line has `id`, `model` (of `support.models.make_models`), `path` and `body`. vLLM's render server
returns `tokens` and `media` (identifier, offset, length); those of the longest prompt are added to the line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kvatlas.sim.held_port import HeldPort
from support.models import make_models

LINES = Path(__file__).parents[1] / "unit" / "tokenization" / "vllm_renders.jsonl"
START_S = 180.0


@contextmanager
def render_server(vllm: str, folder: Path) -> Generator[httpx.Client]:
    """Client of a render server for the model in `folder`."""
    held = HeldPort()
    port = held.number
    options = "--trust-request-chat-template --enable-auto-tool-choice --tool-call-parser hermes".split()
    command = [vllm, "launch", "render", str(folder), "--served-model-name", "m", *options]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for(client, server)
            yield client
    finally:
        server.terminate()
        server.wait()


def wait_for(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    """Return when the server responds."""
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and server.poll() is None:
        try:
            client.get("/health")
        except httpx.TransportError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"no response from {client.base_url}")


def rendered(client: httpx.Client, line: dict[str, Any]) -> dict[str, Any]:
    """Return the line with the server's result."""
    response = client.post(f"{line['path']}/render", json={**line["body"], "mm_payload": "none"})
    if response.is_error:
        raise SystemExit(f"{line['id']}: {response.status_code} {response.text}")
    result: Any = response.json()
    several: list[dict[str, Any]] = result if line["path"] == "/v1/completions" else [result]
    one = max(several, key=lambda each: len(each["token_ids"]))
    kept = {name: line[name] for name in ("id", "model", "path", "body")}
    kept["tokens"] = one["token_ids"]
    if features := one["features"]:
        places = features["mm_placeholders"]["image"]
        kept["media"] = [
            [identifier, place["offset"], place["length"]]
            for identifier, place in zip(features["mm_hashes"]["image"], places, strict=True)
        ]
    return kept


def main(vllm: str, only: list[str]) -> None:
    """Render the lines of all models, or only of those named."""
    lines = [json.loads(line) for line in LINES.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(Path(folder))
        for name in dict.fromkeys(line["model"] for line in lines):
            if only and name not in only:
                continue
            with render_server(vllm, models[name]) as client:
                lines = [rendered(client, line) if line["model"] == name else line for line in lines]
    LINES.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
