"""Decisions of a running `kvatlas serve`, explained over REST and by `kvatlas explain`."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from support.certificates import CertificateFiles
from support.gateway import Gateway, gateway
from support.serve import ANY_PORTS, serving

OBJECTIVE = ("x-llm-d-inference-objective", "batch")
SECRET = ("authorization", "Bearer not-to-be-shown")

ADMISSION = {"objectives": {"batch": 5}}


async def explain(*arguments: str) -> tuple[int, str, str]:
    """Run `kvatlas explain`; return exit status, stdout and stderr."""
    runner = CliRunner(env={"COLUMNS": "250"})
    result = await asyncio.to_thread(runner.invoke, app, ["explain", *arguments])
    return result.exit_code, result.stdout, result.stderr


async def ask(gate: Gateway, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = await gate.served.get(path)
    return answer


def listed(answer: dict[str, Any]) -> list[str]:
    return [each["requestId"] for each in answer["decisions"]]


@pytest.mark.slow
async def test_decisions_on_requests_are_listed_and_explained(tmp_path: Path) -> None:
    scorers = [{"type": "active-request-scorer"}, {"type": "token-load-scorer"}]
    async with gateway(tmp_path, plugins=scorers, admission=ADMISSION) as gate:
        empty: dict[str, object] = {"decisions": [], "nextCursor": None, "missingReplicas": []}
        assert await ask(gate, "/v1/decisions") == empty
        nothing = await explain("--last", "--url", gate.url)
        requests = {
            name: await gate.request(100, ("x-request-id", name), SECRET, OBJECTIVE)
            for name in ("r/0", "r1", "r2")
        }
        score = await gate.served.post("/v1/score", {"model": "m", "token_ids": list(range(50))})

        first = await ask(gate, "/v1/decisions?limit=2")
        second = await ask(gate, f"/v1/decisions?limit=2&cursor={first['nextCursor']}")
        assert (listed(first), listed(second), second["nextCursor"]) == (["r2", "r1"], ["r/0"], None)
        of_one = await ask(gate, f"/v1/decisions?endpoint={requests['r1'].endpoint}")
        assert "r1" in listed(of_one)
        assert {each["picked"][0] for each in of_one["decisions"]} == {requests["r1"].endpoint}
        assert await gate.served.status("/v1/decisions/unknown") == 404
        assert await gate.served.status("/v1/decisions?limit=0") == 422

        decision = await ask(gate, "/v1/decisions/r1")
        table, as_json = (
            await explain("r/0", "--url", gate.url),
            await explain("--last", "--json", "--url", gate.url),
        )
        unknown = await explain("unknown", "--url", gate.url)
        metrics = await gate.served.metrics()
        for request in requests.values():
            request.call.cancel()

    assert score.keys() < decision.keys(), "the same without routing"
    assert (decision["objective"], decision["priority"]) == ("batch", 5)
    assert decision["picked"] == [requests["r1"].endpoint] != [requests["r/0"].endpoint]
    assert (decision["tie"], decision["tied"], decision["picker"]) == (
        False,
        decision["picked"],
        "max-score-picker",
    )
    busy = next(each for each in decision["endpoints"] if each["name"] == requests["r/0"].endpoint)
    assert (busy["inFlight"], busy["load"], busy["trust"]) == ({"requests": 1, "tokens": 100}, None, "dark")
    assert [term["raw"] for term in busy["scores"]] == [1.0, 104.0], "the prompts are alike"
    assert decision["counterfactual"] is None, "the other is worse in both terms"
    assert (nothing[0], unknown[0]) == (1, 1)
    assert "no decision on request unknown is kept" in unknown[2]
    assert table[0] == 0
    assert f"100 tokens, 0 of them cached there -> {requests['r/0'].endpoint}" in table[1]
    assert "tie: chance decided between a, b" in table[1]
    assert json.loads(as_json[1])["requestId"] == "r2"
    assert "kvatlas_decisions_kept 3.0" in metrics
    assert "not-to-be-shown" not in json.dumps([first, second, decision]) + table[1] + as_json[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "give the REQUEST_ID of a request, or --last", id="neither"),
        pytest.param(["r0", "--last"], "give the REQUEST_ID of a request, or --last", id="both"),
        pytest.param(["r0", "--url", "http://127.0.0.1:1"], "is kvatlas there?", id="nobody_there"),
        pytest.param(["r0", "--url", "no-url"], "is kvatlas there?", id="not_an_address"),
    ],
)
async def test_explain_refuses_wrong_use(arguments: list[str], message: str) -> None:
    status, _, stderr = await explain(*arguments)

    assert status == 2
    assert message in stderr


@pytest.mark.parametrize("arguments", [["--last"], ["r0"]])
async def test_explain_blames_the_address_when_nothing_of_kvatlas_is_there(
    arguments: list[str], tmp_path: Path
) -> None:
    async with serving({"server": ANY_PORTS}, tmp_path) as served:
        url = f"http://127.0.0.1:{served.ports['rest']}/ui"
        status, _, stderr = await explain(*arguments, "--url", url)

    assert (status, "knows no /v1/decisions" in stderr) == (2, True)


async def test_explain_hides_the_password_of_an_address(tmp_path: Path) -> None:
    async with serving({"server": ANY_PORTS}, tmp_path) as served:
        url = f"http://me:hidden@127.0.0.1:{served.ports['rest']}"
        status, _, stderr = await explain("r0", "--url", url)

    assert (status, "no decision on request r0 is kept" in stderr, "hidden" in stderr) == (1, True, False)


async def test_explain_sends_the_token_when_reads_are_protected(tmp_path: Path) -> None:
    token, nonsense = tmp_path / "token", tmp_path / "nonsense"
    token.write_text("a-token\n")
    nonsense.write_bytes(b"\xff")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(token), "protectReads": True}}
    async with serving({"server": server}, tmp_path) as served:
        url = f"http://127.0.0.1:{served.ports['rest']}"
        outcomes = {
            "with": await explain("--last", "--url", url, "--token-file", str(token)),
            "without": await explain("--last", "--url", url),
            "no_file": await explain("--last", "--url", url, "--token-file", str(tmp_path / "none")),
            "no_text": await explain("--last", "--url", url, "--token-file", str(nonsense)),
        }
    assert {name: status for name, (status, _, _) in outcomes.items()} == {
        "with": 1, "without": 2, "no_file": 2, "no_text": 2,
    }  # fmt: skip
    assert "no decision is kept" in outcomes["with"][2]
    assert "answered 401: a token is missing" in outcomes["without"][2]
    assert "cannot read" in outcomes["no_file"][2]


async def test_explain_trusts_the_certificate_it_is_given(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    files.renew()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"decisions": [], "nextCursor": None})

    app = web.Application()
    app.router.add_get("/v1/decisions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
    try:
        url = f"https://localhost:{runner.addresses[0][1]}"
        trusting = await explain("--last", "--url", url, "--ca-file", str(tmp_path / "tls.crt"))
        wary = await explain("--last", "--url", url)
    finally:
        await runner.cleanup()
    assert (trusting[0], wary[0]) == (1, 2)
    assert "no decision is kept" in trusting[2]
    assert "certificate verify failed" in wary[2]


async def test_explain_shows_names_as_they_are_but_no_control_character(tmp_path: Path) -> None:
    endpoints = {"static": [{"name": "[fd00::1]:8000", "address": "[fd00::1]:8000", "metrics": ""}]}
    async with gateway(tmp_path, endpoints=endpoints) as gate:
        body = {"model": "\x1b]0;title\x07[/b]", "prompt": [1, 2, 3]}
        request = await gate.post("/v1/completions", body, ("x-request-id", "r"))
        status, stdout, _ = await explain("--last", "--url", gate.url)
        request.call.cancel()

    assert status == 0
    assert "?]0;title?[/b], 3 tokens" in stdout
    assert "\x1b" not in stdout
    assert any(line.startswith("[fd00::1]:8000 ") for line in stdout.splitlines()), stdout
