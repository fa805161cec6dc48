"""The doctor's checks of a configuration: a file alone, a running process, and the command that reads either."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from kvatlas.app.cli.main import app as command_line
from kvatlas.routing.plan.config_files import ConfigFiles
from support.certificates import certificate_files
from support.local_process import local_process
from support.serve import ANY_PORTS


async def test_refused_file_and_python_index_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVATLAS_INDEX", "reference")
    file = tmp_path / "kvatlas.yaml"
    head = {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", "server": ANY_PORTS}
    file.write_bytes(msgspec.yaml.encode(head))
    async with local_process(files=ConfigFiles(file)) as process:
        assert (await process.checks())["endpoints-there"]["state"] == "fail"
        assert (await process.checks())["native-index"]["state"] == "warn"
        file.write_bytes(msgspec.yaml.encode(head | {"weights": {"queue": -1}}))
        found = await process.until_state("configuration-in-force", "fail")
    assert "weights.queue: found -1" in found["evidence"][0]


async def test_snapshot_that_cannot_be_written_is_reported_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    async with local_process(
        snapshot={"file": str(folder / "fleet"), "interval": "10ms", "maxAge": "1m"}
    ) as process:
        found = await process.until_state("snapshots-written", "fail")
        folder.mkdir()
        await process.until_state("snapshots-written", "ok")
    assert f"{folder / 'fleet'} could not be written" in found["evidence"][0]
    assert "there is none" in found["evidence"][0]


async def test_remedies_of_a_large_fleet_are_as_few_as_its_evidence() -> None:
    fleet = [
        {"name": f"e{number}", "address": f"h:{number + 1}", "metrics": "", "events": ""}
        for number in range(30)
    ]
    async with local_process(*fleet) as process:
        found = (await process.checks())["load-known"]
    assert (len(found["evidence"]), len(found["remedies"]), found["more"]) == (20, 20, 10)


async def test_list_without_endpoints_is_what_mends_their_lack(tmp_path: Path) -> None:
    file = tmp_path / "servers.yaml"
    file.write_text("[]")
    async with local_process(endpoints={"file": str(file)}) as process:
        found = (await process.checks())["endpoints-there"]
    assert (found["state"], len(found["remedies"])) == ("fail", 1)
    assert found["remedies"][0].startswith(f"{file}: ")


async def doctor(*arguments: str) -> tuple[int, str, str]:
    """Run `kvatlas doctor`; return exit status, stdout and stderr."""
    runner = CliRunner(env={"COLUMNS": "200"})
    result = await asyncio.to_thread(runner.invoke, command_line, ["doctor", *arguments])
    return result.exit_code, result.stdout, result.stderr


async def test_command_reads_a_running_process_with_its_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(token), "protectReads": True}}
    async with local_process(server=server) as process:
        refused = await doctor("--url", process.url)
        table = await doctor("--url", process.url, "--token-file", str(token))
        as_json = await doctor("--url", process.url, "--token-file", str(token), "--json")
    assert (refused[0], "see --token-file" in refused[2]) == (2, True)
    assert (table[0], as_json[0]) == (1, 1)
    assert "mend: endpoints.static: [{name: vllm-0, address: HOST:PORT}]" in table[1]
    assert json.loads(as_json[1])["state"] == "fail"


async def test_answer_of_another_server_does_not_control_the_terminal() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        error = {"code": "x", "message": "\x1b]0;title\x07no", "detail": None}
        return web.json_response({"error": error}, status=500)

    app = web.Application()
    app.router.add_get("/v1/doctor", refuse)
    async with TestServer(app) as server:
        status, _, stderr = await doctor("--url", str(server.make_url("")))
    assert (status, stderr.endswith("answered 500: ?]0;title?no\n")) == (2, True), stderr


@pytest.mark.parametrize(
    ("sections", "name", "state", "evidence"),
    [
        pytest.param({"endpoints": {}}, "endpoints-there", "fail", "0 endpoints", id="no_endpoint"),
        pytest.param({}, "tokenizer-there", "warn", "the model: no tokenizer", id="no_tokenizer"),
        pytest.param(
            {"model": {"tokenizer": "nowhere"}}, "tokenizer-there", "fail", "nowhere does not exist", id="lost_tokenizer"
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "dataParallelSize": 2}]}},
            "ports-apart", "fail", "a: tcp://h:5558 is one rank's events and another's replay", id="ports",
        ),
        pytest.param({}, "changes-guarded", "ok", "from this machine alone", id="no_token_for_changes"),
        pytest.param(
            {"rest": {"allowedHosts": ["*"]}}, "changes-guarded", "warn", "a page of any site", id="any_host"
        ),
        pytest.param({}, "http2-library", "ok", "libnghttp2 1.", id="library"),
        pytest.param(
            {"server": {"auth": {"bearerTokenFile": "nowhere"}}}, "secrets-usable", "fail", "nowhere", id="no_token"
        ),
        pytest.param(
            {"server": {"auth": {"metricsTokenFile": "lost"}}}, "secrets-usable", "fail",
            "server.auth.metricsTokenFile: cannot read FOLDER/lost", id="no_metrics_token",
        ),
        pytest.param(
            {"server": {"tls": {"certFile": "tls.crt", "keyFile": "tls.key"}}},
            "secrets-usable", "ok", "ends in 3650.0 days", id="certificate",
        ),
        pytest.param(
            {"server": {"metricsTls": {"certFile": "tls.crt", "keyFile": "tls.key"}}},
            "secrets-usable", "ok", "ends in 3650.0 days", id="certificate_of_metrics",
        ),
        pytest.param(
            {"server": {"metricsTls": {"certFile": "nowhere", "keyFile": "tls.key"}}},
            "secrets-usable", "fail", "server.metricsTls.certFile: cannot read FOLDER/nowhere", id="no_certificate_of_metrics",
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "events": ""}]}},
            "events-heard", "warn", "a: has no event stream", id="no_events",
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "replay": ""}]}},
            "events-whole", "warn", "a: no replay address", id="no_replay",
        ),
        pytest.param(
            {"endpoints": {"static": [{"name": "a", "address": "h:1", "metrics": ""}]}},
            "load-known", "warn", "a: is not scraped", id="not_scraped",
        ),
        pytest.param(
            {"metricsScrape": {"interval": "1s"}}, "load-fresh", "warn", "every 1 s", id="seldom_scraped"
        ),
        pytest.param(
            {"tiers": [{"name": "gpu"}, {"name": "cpu", "source": "inferred"}]},
            "capacity-real", "warn", "tier cpu is inferred without a bound", id="no_bound",
        ),
    ],
)  # fmt: skip
async def test_defect_of_a_file_is_reported_without_a_process(
    sections: dict[str, Any], name: str, state: str, evidence: str, tmp_path: Path
) -> None:
    certificate_files(tmp_path)
    file = tmp_path / "kvatlas.yaml"
    endpoints = {"static": [{"name": "a", "address": "h:1"}]}
    head = {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", "endpoints": endpoints}
    file.write_bytes(msgspec.yaml.encode(head | sections))

    status, stdout, _ = await doctor("--config", str(file), "--json")

    report = json.loads(stdout)
    found = next(check for check in report["checks"] if check["name"] == name)
    assert status == (1 if report["state"] == "fail" else 0)
    assert found["state"] == state
    assert evidence.replace("FOLDER", str(tmp_path)) in "\n".join(found["evidence"])
    assert state == "ok" or (found["effect"] and found["remedies"])


async def test_command_fails_when_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kvatlas.yaml").write_text("weights: 3\n")

    status, _, stderr = await doctor("--config", str(tmp_path / "kvatlas.yaml"))

    assert (status, "kind: missing" in stderr) == (1, True)
