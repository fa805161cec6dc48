"""The dashboard with a required token, and while kvatlas restarts: in a browser, over a running process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.held_port import HeldPort
from support.browser import PageView, chromium, open_page
from support.engine_metrics import metrics_of
from support.ext_proc import DUPLEX, request_body, request_headers
from support.fleets import make_endpoint
from support.gateway import FLEET, Gateway, gateway
from support.local_process import local_process
from support.scraping import metrics
from support.serve import ANY_PORTS, serving
from support.tree import ROOT
from support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

ROWS, DECISIONS = "#fleet-table tbody tr", "#decisions-table tbody tr"
TOKEN = "a-token-that-is-not-to-be-shown"  # noqa: S105 - used by this test alone
SECRET = "zebra quartz lantern"  # noqa: S105 - a prompt
CHAT = [{"role": "user", "content": SECRET * 20}]
READS = ("/v1/decisions", "/v1/decisions/r1", "/v1/endpoints", "/v1/index", "/v1/config", "/v1/weights", "/v1/audit",
         "/v1/doctor", "/workers", "/metrics", "/openapi.json")  # fmt: skip
PAGE = sorted(
    f"/ui/{path.name}" for path in (ROOT / "api" / "ui").iterdir() if path.suffix != ".py" and path.is_file()
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as found:
        yield found


@asynccontextmanager
async def guarded(folder: Path, **auth: bool) -> AsyncGenerator[Gateway]:
    """Run a process with a token, and route a secret prompt through it."""
    (folder / "token").write_text(TOKEN)
    write_demo_model(folder / "model")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(folder / "token"), **auth}}
    model = {"names": [MODEL_NAME], "tokenizer": str(folder / "model")}
    async with gateway(folder, "--log-level", "debug", server=server, model=model) as gate:
        await ask(gate)
        yield gate


async def ask(gate: Gateway, request_id: str = "r1") -> None:
    """Send a chat with the secret through the picker."""
    body = {"model": MODEL_NAME, "messages": CHAT}
    call = gate.open()
    headers = request_headers(("x-request-id", request_id), config=DUPLEX)
    for message in (headers, request_body(json.dumps(body).encode(), end=True)):
        await call.write(message.SerializeToString())
    await call.read()
    call.cancel()


async def everything(gate: Gateway) -> str:
    """Return all responses to calls without the token, and the log."""
    said: list[str] = []
    for path in (*READS, *PAGE):
        async with gate.served.session.get(f"{gate.url}{path}") as answer:
            said.append(f"{answer.status} {path} {dict(answer.headers)} {await answer.text()}")
    async with gate.served.session.get(f"{gate.url}/v1/live") as answer:
        event = await (answer.content.readuntil(b"\n\n") if answer.status == 200 else answer.read())
        said.append(f"{answer.status} {event.decode()}")
    return "\n".join((*said, *gate.served.log))


async def give(view: PageView, token: str) -> None:
    await view.page.get_by_label("Bearer token").fill(token)
    await view.page.get_by_role("button", name="Use it").click()


async def look_for_the_secret(view: PageView) -> None:
    """Look up on the page where the secret prompt is cached."""
    await view.page.get_by_label("Text, chat messages").fill(SECRET * 20)
    await view.page.get_by_role("button", name="Find it").click()
    await expect(view.page.locator(".strips > li")).to_have_count(2)


async def test_page_shows_nothing_without_the_token_and_all_calls_carry_it(
    tmp_path: Path, browser: Browser
) -> None:
    async with guarded(tmp_path, protectReads=True) as gate:
        async with open_page(browser, f"{gate.url}/ui") as view:
            dialog = view.page.get_by_role("dialog", name="Token")
            await expect(dialog).to_be_visible()
            assert "r1" not in await view.text("main")
            await view.page.get_by_role("button", name="Not now").click()
            await expect(view.page.locator("#connection")).to_have_text("its token is needed")
            await expect(dialog).to_be_hidden()
            await view.page.get_by_role("button", name="Give token").click()
            await give(view, "another")
            await expect(dialog).to_contain_text("That is not the token")
            await give(view, f"{TOKEN}\u200b")  # as a token comes that was copied from a chat
            await expect(dialog).to_be_visible()
            await expect(dialog).to_contain_text("That is not the token")
            view.requests.clear()
            await give(view, TOKEN)
            await expect(view.page.locator(DECISIONS)).to_have_count(1)
            await look_for_the_secret(view)
            await expect(view.page.locator("#doctor-problems > li").first).to_be_visible()

            calls = [each for each in view.requests if "/ui" not in each.url]
            assert {"/v1/live", "/v1/score", "/v1/doctor", "/v1/audit", "/v1/weights"} <= {
                urlsplit(each.url).path for each in calls
            }
            assert {each.headers.get("authorization") for each in calls} == {f"Bearer {TOKEN}"}
            assert not [each.url for each in view.requests if TOKEN in each.url]
            assert await view.value("Object.values(sessionStorage)") == [TOKEN]
            assert await view.value("[localStorage.length, document.cookie]") == [0, ""]
            await view.page.get_by_role("button", name="Forget token").click()
            await expect(dialog).to_be_visible()
            assert await view.value("sessionStorage.length") == 0
        said = await everything(gate)
    assert "401 /v1/decisions " in said
    assert "200 /ui/app.js " in said
    for secret in (TOKEN, SECRET, "zebra", 'r1"'):
        assert secret not in said


async def test_weights_are_applied_with_the_token_after_they_were_confirmed(
    tmp_path: Path, browser: Browser
) -> None:
    async with guarded(tmp_path) as gate:
        async with open_page(browser, f"{gate.url}/ui") as view:
            await look_for_the_secret(view)
            await view.page.get_by_label("queue").fill("0.5")
            apply = view.page.get_by_role("button", name="Apply").first
            await apply.click()
            confirm = view.page.get_by_role("dialog", name="Apply these weights?")
            await expect(confirm).to_contain_text("queue: 2 → 0.5")
            await confirm.get_by_role("button", name="Leave it").click()
            assert (await gate.served.get("/v1/weights"))["generation"] == 1
            await apply.click()
            await confirm.get_by_role("button", name="Apply").click()
            await give(view, TOKEN)
            outcome = view.page.locator("#weights-outcome")
            await expect(outcome).to_have_text("Configuration 2 is in force: weights.queue: 2 -> 0.5.")
            await expect(view.page.locator("#summary")).to_contain_text("configuration 2")
            await expect(view.page.locator("#weights-sliders li").first).to_contain_text("in force 0.5")
            await expect(apply).to_be_disabled()
            assert [error for error in view.errors if "401" not in error] == []
        found = await gate.served.get("/v1/weights")
        said = await everything(gate)
    assert (found["generation"], found["weights"][0]["weight"]) == (2, 0.5)
    assert "200 /v1/decisions/r1 " in said
    for secret in (TOKEN, SECRET, "zebra"):
        assert secret not in said


async def test_policy_is_compared_and_changed_after_it_was_confirmed(
    tmp_path: Path, browser: Browser
) -> None:
    async with guarded(tmp_path) as gate, open_page(browser, f"{gate.url}/ui") as view:
        line, gain = view.page.locator("#policy-line"), view.page.locator("#policy-gain")
        buttons = view.page.locator("#policy-buttons")
        await expect(line).to_have_text("Policy: weights")
        await expect(gain).to_contain_text("Would latency be quicker on your traffic?")
        await buttons.get_by_role("button", name="Compare latency").click()
        await give(view, TOKEN)
        await expect(gain).to_have_text("latency is compared; no request was yet.")
        await ask(gate)
        await expect(gain).to_contain_text("of 1 request. Its gain is not known yet")
        await expect(view.page.get_by_label("queue")).to_be_visible()
        await buttons.get_by_role("button", name="Switch to latency").click()
        confirm = view.page.get_by_role("dialog", name="Switch to latency?")
        await expect(confirm).to_contain_text("policy: weights → latency")
        await confirm.get_by_role("button", name="Switch").click()
        await expect(line).to_have_text("Policy: latency")
        await expect(view.page.locator("#weights-controls")).to_be_hidden()
        await buttons.get_by_role("button", name="Stop comparing").click()
        await expect(gain).to_contain_text("Would weights be quicker on your traffic?")
        found = await gate.served.get("/v1/policy")
        assert found["policy"] == "latency"
        assert [error for error in view.errors if "401" not in error] == []


async def test_prompt_without_token_ids_is_found_by_its_bytes(tmp_path: Path, browser: Browser) -> None:
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(metrics_of(metrics().decode()))
        static = [{"name": "a", "address": "127.0.0.1:1", "events": "", "metrics": url}]
        gate = await stack.enter_async_context(gateway(tmp_path, endpoints={"static": static}))

        async def has_block_size() -> bool:
            return bool((await gate.served.get("/v1/endpoints/a"))["publishers"][0]["blockSize"])

        async def is_read() -> bool:
            """Return whether the prompt was read in time, which it is not if this machine is busy."""
            await ask(gate)
            reason = (await gate.served.get("/v1/decisions/r1"))["noPrefixReason"]
            assert reason in {"no_tokenizer", "tokenize_timeout"}
            return bool(reason == "no_tokenizer")

        await until(has_block_size, what="a block size")
        await until(is_read, what="a prompt that is read in time")
        async with open_page(browser, f"{gate.url}/ui") as view:
            # Bytes have keys per model, and the page takes its name from the first decision that it is told: here, late.
            is_asked = asyncio.Event()

            async def late(route: Route) -> None:
                await is_asked.wait()
                await route.continue_()

            await view.page.route("**/v1/live", late)
            await view.page.reload()
            await view.page.get_by_label("Text, chat messages").fill(json.dumps(CHAT))
            button = view.page.get_by_role("button", name="Find it")
            await button.click()
            await expect(button).to_be_disabled()
            is_asked.set()
            await expect(view.page.locator(".strips > li")).to_have_count(1)
            lead = await view.text("#prompt-lead")
    assert "Its token ids are not known (no_tokenizer), so only endpoints without events are matched" in lead
    assert "a can reuse most of it, 96 tokens" in lead


async def test_page_shows_that_kvatlas_is_gone_and_recovers_with_it(tmp_path: Path, browser: Browser) -> None:
    port = HeldPort()
    config = {"server": ANY_PORTS | {"rest": f"127.0.0.1:{port.number}"}, "endpoints": FLEET}
    url = f"http://127.0.0.1:{port.number}/ui"
    async with AsyncExitStack() as stack:
        async with serving(config, tmp_path):
            view = await stack.enter_async_context(open_page(browser, url))
            await expect(view.page.locator("#connection")).to_have_text("live")
            await expect(view.page.locator(ROWS)).to_have_count(2)
        await expect(view.page.locator("#connection")).to_have_attribute("data-state", "gone")
        gone = await view.text("#connection")
        assert re.fullmatch(r"kvatlas .*; trying again; shown as of \d\d:\d\d:\d\d", gone)
        await expect(view.page.locator(ROWS)).to_have_count(2)
        async with serving(config, tmp_path):
            await expect(view.page.locator("#connection")).to_have_text("live")
            await stack.aclose()


async def test_late_answer_is_not_shown_as_another_decision(tmp_path: Path, browser: Browser) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        is_asked.set()
        await may_answer.wait()
        await route.fulfill(status=404, json={"error": {"message": "this one is gone"}})

    async with guarded(tmp_path) as gate, open_page(browser, f"{gate.url}/ui") as view:
        await ask(gate, "r2")
        await view.page.route("**/v1/decisions/r1", late)
        await view.page.get_by_role("button", name="r1").click()
        await is_asked.wait()
        await view.page.keyboard.press("Escape")
        await view.page.get_by_role("button", name="r2").click()
        await expect(view.page.locator("#decision-body tbody tr").first).to_be_visible()
        async with view.page.expect_event("requestfinished"):
            may_answer.set()
        await view.value("() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        assert await view.text("#decision-title") == "Request r2"
        assert "this one is gone" not in await view.text("#decision-body")


async def test_large_fleet_is_told_from_the_part_that_is_shown(browser: Browser) -> None:
    fleet = [make_endpoint(f"e{number}", number + 1, events="") for number in range(502)]
    async with local_process(*fleet) as process, open_page(browser, f"{process.url}/ui") as view:
        await process.send_requests(1)
        facts = view.page.locator("#fleet-facts")
        await expect(facts).to_have_text(
            "the first 500 of 502 endpoints · 0 of these live · 0 requests waiting there"
        )
        await view.page.locator(DECISIONS).get_by_role("button").click()
        await expect(view.page.locator("#decision-body .notes").first).to_contain_text("and 482 more.")
        assert view.errors == []
