"""The whole REST API of a running `kvatlas serve`: described, protected, and free of prompts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from support.serve import ANY_PORTS, Served, serving

TOKEN = "a-token-that-is-not-to-be-shown"  # noqa: S105 - used by this test alone
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
STATIC = [
    {"name": name, "address": f"127.0.0.1:{number}", "events": "", "metrics": ""}
    for number, name in enumerate(("a", "b/c", "d"), 1)
]
HOOKS = Path(__file__).parents[1] / "support" / "schemathesis_hooks.py"
N_EXAMPLES = "6"
"""Calls made up for each operation."""
NOT_CHECKED = "positive_data_acceptance"
"""A schema cannot express the rules for addresses and block sizes."""


def config(folder: Path, **auth: Any) -> dict[str, Any]:
    (folder / "token").write_text(TOKEN)
    server = ANY_PORTS | {"auth": {"bearerTokenFile": "token", **auth}}
    return {"server": server, "endpoints": {"static": STATIC}}


async def call(
    served: Served, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{served.ports['rest']}{path}"
    async with served.session.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.slow
async def test_generated_calls_get_responses_of_the_description(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as served:
        url = f"http://127.0.0.1:{served.ports['rest']}/openapi.json"
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("schemathesis"),
            *("run", url, "--header", f"Authorization: Bearer {TOKEN}", "--phases", "examples,fuzzing"),
            *("--exclude-path", "/v1/live"),  # an endless stream
            *("--mode", "all", "--generation-deterministic", "--no-color"),
            *("--max-examples", N_EXAMPLES, "--exclude-checks", NOT_CHECKED),
            stdout=asyncio.subprocess.PIPE,
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS)},
        )
        report, _ = await process.communicate()
        assert process.returncode == 0, report.decode()
        assert await served.status("/readyz") == 200
    assert not [line for line in served.log if "Traceback" in line or " failed" in line]


async def test_every_operation_is_described_with_examples_that_fit(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as served:
        description = await served.get("/openapi.json")
    wanting_token = set[str]()
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            assert operation["summary"], name
            if "security" in operation:
                wanting_token.add(name)
                assert "401" in operation["responses"], name
            bodies = [operation["requestBody"]] if "requestBody" in operation else []
            bodies += [each for code, each in operation["responses"].items() if code.startswith("2")][:1]
            for media in (kind for body in bodies for kind in body["content"].values()):
                assert "example" in media, name
                fits(media["example"], media.get("schema", {}), description)
            for parameter in operation.get("parameters", ()):
                if parameter["required"]:
                    fits(parameter["example"], parameter["schema"], description)
    assert wanting_token == {
        "POST /events",
        "POST /register",
        "POST /unregister",
        "PUT /v1/capacities",
        "PUT /v1/policy",
        "PUT /v1/shadow",
        "PUT /v1/weights",
        "POST /v1/endpoints/{name}/reset",
    }


def fits(example: Any, schema: Any, description: Any) -> None:
    whole = schema | {"components": description["components"]}
    jsonschema.validate(example, whole, cls=jsonschema.Draft202012Validator)


async def test_reads_need_the_token_too_when_protected(tmp_path: Path) -> None:
    async with serving(config(tmp_path, protectReads=True), tmp_path) as served:
        for path in ("/v1/decisions", "/metrics", "/openapi.json", "/docs", "/v1/index"):
            assert await served.status(path) == 401, path
        assert (await call(served, "GET", "/v1/index", headers=AUTHORIZED))[0] == 200
        assert (await call(served, "POST", "/v1/score", {"prompt": "x"}))[0] == 401
        assert await served.status("/healthz") == 200


async def test_metrics_want_the_token_of_their_own_on_both_listeners(tmp_path: Path) -> None:
    (tmp_path / "metrics-token").write_text("watcher")
    async with serving(
        config(tmp_path, metricsTokenFile=str(tmp_path / "metrics-token")), tmp_path
    ) as served:
        statuses = {
            (listener, token): await _status(
                f"http://127.0.0.1:{served.ports[listener]}/metrics", f"Bearer {token}"
            )
            for listener in ("metrics", "rest")
            for token in ("watcher", "wrong", "")
        }
        other = await call(served, "GET", "/v1/index")
    assert {key for key, status in statuses.items() if status == 200} == {
        ("metrics", "watcher"),
        ("rest", "watcher"),
    }
    assert {status for status in statuses.values() if status != 200} == {401}
    assert other[0] == 200


async def _status(url: str, authorization: str) -> int:
    headers = {"Authorization": authorization}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        return answer.status


async def test_fleet_is_listed_in_pages_and_every_error_has_one_form(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as served:
        first = await served.get("/v1/endpoints?limit=2")
        second = await served.get(f"/v1/endpoints?limit=2&cursor={first['nextCursor']}")
        reset = await call(served, "POST", "/v1/endpoints/b%2Fc/reset", headers=AUTHORIZED)
        errors = {
            401: await call(served, "PUT", "/v1/weights", {"queue": 5}),
            404: await call(served, "GET", "/v1/nothing"),
            405: await call(served, "DELETE", "/v1/index", headers=AUTHORIZED),
            422: await call(served, "GET", "/v1/endpoints?limit=none"),
        }
        unknown = await call(served, "POST", "/v1/endpoints/e/reset", headers=AUTHORIZED)
        weights = (await served.get("/v1/config"))["config"]["weights"]
    assert [each["name"] for page in (first, second) for each in page["endpoints"]] == ["a", "b/c", "d"]
    assert second["nextCursor"] is None
    assert reset == (200, {"endpoint": "b/c", "forgotten": 0, "replaying": [], "missingReplicas": []})
    for status, (found, answer) in errors.items():
        assert (found, set(answer["error"])) == (status, {"code", "message", "detail"})
    assert (unknown[0], "known: a, b/c, d" in unknown[1]["error"]["message"]) == (404, True)
    assert weights["queue"] == 2


SECRET_TEXT, SECRET_TOKENS = "zebra-quartz-lantern", [918273, 645546, 918274]
SECRETS = (SECRET_TEXT, "918273", "645546")
PROMPTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/score", {"model": "m", "prompt": SECRET_TEXT}),
    ("POST", "/v1/score", {"model": "m", "messages": [{"role": "user", "content": SECRET_TEXT}]}),
    ("POST", "/v1/score", {"model": "m", "messages": [{SECRET_TEXT: SECRET_TEXT}]}),
    ("POST", "/v1/score", {"model": "m", "messages": SECRET_TEXT}),
    ("POST", "/v1/score", {"model": "m", "token_ids": SECRET_TOKENS}),
    ("POST", "/v1/score", {"model": "m", "token_ids": [SECRET_TEXT, *SECRET_TOKENS]}),
    ("POST", "/v1/score", {"model": "m", "token_ids": [-918273]}),
    ("POST", "/v1/score", {"model": "m", "prompt": [SECRET_TEXT], "keys": SECRET_TEXT}),
    ("POST", "/query", {"token_ids": SECRET_TOKENS}),
    ("POST", "/query", {"token_ids": SECRET_TEXT, "cache_salt": [SECRET_TEXT]}),
    ("POST", "/query_by_hash", {"seq_hashes": [SECRET_TEXT], "block_hashes": SECRET_TOKENS}),
    ("POST", "/register", {"prompt": SECRET_TEXT, "block_size": SECRET_TEXT}),
    ("PUT", "/v1/weights", [SECRET_TEXT]),
]


async def test_no_answer_and_no_log_line_holds_a_prompt_or_the_token(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path, "--log-level", "debug") as served:
        answers = [await call(served, *prompt, headers=AUTHORIZED) for prompt in PROMPTS]
        broken = aiohttp.BytesPayload(f'{{"prompt": "{SECRET_TEXT}'.encode(), content_type="application/json")
        url = f"http://127.0.0.1:{served.ports['rest']}"
        async with served.session.post(f"{url}/v1/score", data=broken) as answer:
            answers.append((answer.status, await answer.json()))
        pages = [
            await served.get(path)
            for path in ("/v1/decisions", "/v1/endpoints", "/v1/config", "/v1/index", "/workers")
        ]
        metrics = await served.metrics()
    said = json.dumps([answers, pages]) + metrics + "\n".join(served.log)
    assert {status for status, _ in answers} == {200, 400, 422}
    for secret in (*SECRETS, TOKEN):
        assert secret not in said
