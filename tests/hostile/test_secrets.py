"""Secrets of the configuration: nothing that the process or a command says repeats them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from support.serve import config_text, serving
from support.waiting import until

SECRETS = ("hunter2", "s3cret-key")
METRICS = "http://watcher:hunter2@127.0.0.1:1/metrics?api=s3cret-key"
CONFIG: dict[str, Any] = {
    "endpoints": {"static": [{"name": "a", "address": "127.0.0.1:1", "events": "", "metrics": METRICS}]},
    "model": {"names": ["m"], "remoteTokenizer": {"url": "http://me:hunter2@127.0.0.1:1"}},
}
READS = ("/v1/config", "/v1/endpoints", "/v1/endpoints/a", "/v1/doctor", "/metrics", "/v1/decisions")


def config_command(verb: str, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvatlas.app.cli.main", "config", verb, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def shown(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


async def test_process_repeats_no_secret_of_a_url(tmp_path: Path) -> None:
    async with serving(CONFIG, tmp_path, "--log-level", "debug", ready=False) as served:
        await served.post("/v1/score", {"model": "m", "prompt": "x"})

        async def has_failed() -> bool:
            return 'kvatlas_scrape_errors_total{endpoint="a",reason=' in await served.metrics()

        await until(has_failed, what="a scrape that failed")
        said: list[str] = []
        for path in READS:
            async with served.session.get(f"http://127.0.0.1:{served.ports['rest']}{path}") as answer:
                said.append(await answer.text())
        file = tmp_path / "kvatlas.yaml"
        file.write_bytes(config_text(CONFIG | {"endpoints": {}, "weights": {"queue": 7}}))
        await served.until_generation(2)
    assert shown("\n".join((*said, *served.log))) == []
    assert "http://***@127.0.0.1:1" in said[0]


def test_commands_repeat_no_secret_of_a_url(tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.yaml"
    file.write_bytes(config_text(CONFIG))
    found = config_command("show", file)
    assert (found.returncode, "http://***@127.0.0.1:1" in found.stdout) == (0, True)
    assert shown(found.stdout + found.stderr) == []


def test_refusal_of_a_broken_url_does_not_repeat_it(tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.yaml"
    broken = {
        "name": "a",
        "address": "127.0.0.1:1",
        "metrics": "http://watcher:hunter2/x@127.0.0.1:1/m?k=s3cret-key",
    }
    file.write_bytes(config_text({"endpoints": {"static": [broken]}}))
    found = config_command("check", file)
    assert (found.returncode, "endpoints.static[0].metrics" in found.stderr) == (1, True), found.stderr
    assert shown(found.stdout + found.stderr) == []
