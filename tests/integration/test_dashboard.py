"""The dashboard in a browser, over a fleet that has served real traffic through Envoy."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from kvatlas.sim.demo_model import MODEL_NAME
from kvatlas.sim.words import prose
from support.browser import NARROW, WIDE, Scheme, chromium, open_page, write_picture
from support.contrast import hard_to_read
from support.dashboard import (
    BLOCK_SIZE,
    N_SERVERS,
    WORKLOAD,
    Installation,
    Question,
    installation,
    send_traffic,
)
from support.dashboard_page import MINUS, cells, drawn, figures, find_prompt, rounded, shows_endpoint
from support.waiting import until

PICTURES = {
    "dashboard-page-wide-light.png",
    "dashboard-page-wide-dark.png",
    "dashboard-page-narrow-dark.png",
    "dashboard-decision-wide-light.png",
}
FOCUSABLE = """[...document.querySelectorAll("a[href], button, input, textarea, summary, [tabindex='0']")]
  .filter(each => each.checkVisibility() && !each.disabled).length"""
BOXES = """[...document.querySelectorAll("section")].map(each => {
  const { x, y, width, height } = each.getBoundingClientRect();
  return [each.id, x, y, width, height];
})"""

HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

ROWS = "#fleet-table tbody tr"
DECISIONS = "#decisions-table tbody tr"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Installation]:
    async with installation(tmp_path_factory.mktemp("installation")) as found:
        await send_traffic(found)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_chat(installed: Installation) -> Question:
    """Send a chat that vllm-0 holds whole, vllm-1 in part, and vllm-2 only in CPU memory."""
    rng = Random(7)
    system, first, reply, second = (prose(rng, n_words) for n_words in (500, 300, 100, 60))
    await installed.chat_with("vllm-0", system, first, reply, second)
    await installed.chat_with("vllm-1", system, first)
    await installed.chat_with("vllm-2", system, second)
    await installed.refill("vllm-2")
    question = Question((system, first, reply, second))

    async def is_known() -> bool:
        held = {name: each["tierTokens"] for name, each in (await installed.prefixes(question)).items()}
        return bool(
            held["vllm-0"]["gpu"] > held["vllm-1"]["gpu"] > 0 == held["vllm-2"]["gpu"] < held["vllm-2"]["cpu"]
        )

    await until(is_known, what="the parts of the prompt in the index")
    return question


async def test_fleet_shows_what_each_endpoint_holds(installed: Installation, browser: Browser) -> None:
    async with open_page(browser, f"{installed.url}/ui") as view:
        await expect(view.page.locator(ROWS)).to_have_count(N_SERVERS)
        await expect(view.page.locator("#connection")).to_have_text("live")

        async def shows_all_endpoints() -> bool:
            endpoints = (await installed.served.get("/v1/endpoints"))["endpoints"]
            rows = [await cells(view, f"{ROWS}:nth-child({n + 1})") for n in range(N_SERVERS)]
            return all(map(shows_endpoint, rows, endpoints))

        await until(shows_all_endpoints, what="the figures of /v1/endpoints on the page")
        assert "4 endpoints · 4 live" in await view.text("#fleet-facts")


async def test_decision_shows_why_the_server_was_picked(installed: Installation, browser: Browser) -> None:
    newest = (await installed.served.get("/v1/decisions?limit=1"))["decisions"][0]
    decision: dict[str, Any] = await installed.served.get(f"/v1/decisions/{newest['requestId']}")
    ranked = sorted(decision["endpoints"], key=lambda each: -each["total"])
    async with open_page(browser, f"{installed.url}/ui") as view:
        request = view.page.get_by_role("button", name=newest["requestId"])
        row = await cells(view, f"{DECISIONS}:has(button:text-is('{newest['requestId']}'))")
        assert row["Endpoint"] == decision["picked"][0] == ranked[0]["name"]
        assert figures(row["Total"]) == [rounded(ranked[0]["total"])]
        gains = {
            ours["name"].removesuffix("-scorer"): ours["product"] - theirs["product"]
            for ours, theirs in zip(ranked[0]["scores"], ranked[1]["scores"], strict=True)
        }
        rival, _, reasons = row["Why"].removeprefix("over ").partition(": ")
        assert ranked[1]["total"] == next(each["total"] for each in ranked if each["name"] == rival)
        assert reasons == ", ".join(
            f"{name} {f'{gain:+.2f}'.replace('-', MINUS)}"
            for name, gain in sorted(gains.items(), key=lambda item: -item[1])
            if abs(gain) >= 0.005
        )

        await request.focus()
        await view.page.keyboard.press("Enter")
        dialog = view.page.get_by_role("dialog", name=f"Request {newest['requestId']}")
        rows = dialog.locator("tbody tr")
        await expect(rows).to_have_count(len(ranked))
        shown = [await cells(view, f"#decision-body tbody tr:nth-child({n + 1})") for n in range(len(ranked))]
        assert [figures(each["Total"])[0] for each in shown] == [rounded(each["total"]) for each in ranked]
        assert "picked" in shown[0]["Endpoint"]
        by_name = {each["name"]: each for each in ranked}
        for each in shown:
            endpoint = by_name[each["Endpoint"].split()[0]]
            for term in endpoint["scores"]:
                product, score, weight = figures(each[term["name"].removesuffix("-scorer")])[:3]
                assert (product, score) == (rounded(term["product"]), rounded(term["score"]))
                assert weight == term["weight"]
        if decision["counterfactual"]:
            assert decision["counterfactual"]["scorer"] in await dialog.inner_text()
        await view.page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await expect(request).to_be_focused()


async def test_prompt_is_shown_where_it_is_cached(
    installed: Installation, shared_chat: Question, browser: Browser
) -> None:
    answer = await installed.served.post("/v1/score", {"model": MODEL_NAME, "messages": shared_chat.messages})
    n_tokens, n_blocks = answer["tokens"], answer["blocks"]
    async with open_page(browser, f"{installed.url}/ui") as view:
        await find_prompt(view, shared_chat)
        strips = view.page.locator(".strips > li")
        assert await strips.first.get_attribute("data-name") == "vllm-0"
        for name, prefix in (await installed.prefixes(shared_chat)).items():
            strip = view.page.locator(f".strips > li[data-name='{name}']")
            reusable, share = figures(await strip.locator(".figures > span").inner_text())
            assert (reusable, share) == (
                prefix["usableTokens"],
                round(100 * prefix["usableTokens"] / n_tokens),
            )
            tiers = [f"{tier} {tokens:,}" for tier, tokens in prefix["tierTokens"].items()]
            assert await strip.locator(".figures > small").first.inner_text() == " · ".join(tiers)
            label = await strip.get_by_role("img").get_attribute("aria-label") or ""
            for number, (tier, tokens) in enumerate(prefix["tierTokens"].items()):
                assert f"{tier} the first {tokens // BLOCK_SIZE} of {n_blocks} blocks" in label
                lane = strip.locator(".lane").nth(number)
                assert await drawn(lane) == pytest.approx(tokens / n_tokens, abs=0.01), (name, tier)
        whole = await view.page.locator(".fleet-heat").get_by_role("img").get_attribute("aria-label") or ""
        assert re.fullmatch(r"Whole fleet: tokens 1 to [\d,]+ on [34] endpoints, .* on 0 endpoints", whole)
        assert view.errors == []

        await view.page.get_by_label("Text, chat messages").fill("x")
        await view.page.get_by_role("button", name="Find it").click()
        await expect(view.page.locator("#prompt-lead")).to_contain_text("Nobody can reuse any of it.")


ROLE = '{"role": "user", "content": "x"}'


@pytest.mark.parametrize(
    ("text", "summary", "body"),
    [
        pytest.param("Hello", "text", {"prompt": "Hello"}, id="text"),
        pytest.param("[1, 2]", "text", {"prompt": "[1, 2]"}, id="json_that_is_no_chat"),
        pytest.param("null", "text", {"prompt": "null"}, id="json_of_nothing"),
        pytest.param(f"[{ROLE}]", "1 chat message", {"messages": [json.loads(ROLE)]}, id="messages"),
        pytest.param(
            f'{{"model": "m", "messages": [{ROLE}, {ROLE}]}}', "2 chat messages",
            {"messages": [json.loads(ROLE)] * 2}, id="request_of_a_chat",
        ),
        pytest.param(
            '{"model": "m", "prompt": "Hello"}', "the prompt of a request", {"prompt": "Hello"}, id="request_of_a_completion"
        ),
    ],
)  # fmt: skip
async def test_pasted_text_is_understood(
    text: str, summary: str, body: dict[str, Any], installed: Installation, browser: Browser
) -> None:
    async with open_page(browser, f"{installed.url}/ui") as view:
        read = "async text => (await import('/ui/prompt.js')).question(text)"
        found = await view.value(read, text)
        assert (found["told"], found["body"]) == (summary, body)
        assert found.get("model") == ("m" if '"model"' in text else None)


async def test_audit_shows_verdicts_per_endpoint(installed: Installation, browser: Browser) -> None:
    endpoints = (await installed.served.get("/v1/audit"))["endpoints"]
    n_requests = sum(each["requests"] for each in endpoints)
    n_good = sum(each["verdicts"]["good"] for each in endpoints)
    assert n_requests > WORKLOAD.n_requests / 2
    async with open_page(browser, f"{installed.url}/ui") as view:
        await expect(view.page.locator("#audit-table tbody tr")).to_have_count(len(endpoints))
        assert figures(await view.text("#audit-facts")) == [
            n_good,
            n_requests,
            rounded(100 * n_good / n_requests, 1),
        ]
        for number, endpoint in enumerate(endpoints, 1):
            row = await cells(view, f"#audit-table tbody tr:nth-child({number})")
            expected, reused = (sum(endpoint[each].values()) for each in ("expectedTokens", "reusedTokens"))
            assert row["Endpoint"].strip() == endpoint["name"]
            assert figures(row["Expected"]) + figures(row["Reused"]) == [expected, reused]
            assert figures(row["Not reused"]) + figures(row["Unforeseen"]) == [
                endpoint["overTokens"],
                endpoint["underTokens"],
            ]
            share = endpoint["verdicts"]["good"] / endpoint["requests"]
            assert figures(row["As expected"]) == [rounded(100 * share, 1)]


async def test_doctor_shows_the_misconfiguration_and_its_remedy(
    installed: Installation, browser: Browser
) -> None:
    checks = (await installed.served.get("/v1/doctor"))["checks"]
    wrong = {check["name"]: check for check in checks if check["state"] in ("warn", "fail")}
    async with open_page(browser, f"{installed.url}/ui") as view:
        problem = view.page.locator("#doctor-problems > li[data-name='capacity-real']")
        text = await problem.inner_text()
        for line in (*wrong["capacity-real"]["evidence"], wrong["capacity-real"]["effect"]):
            assert line in text
        assert await problem.locator("pre").all_inner_texts() == ["tiers[gpu].lruCapacityPerServer: auto"]
        assert await view.page.locator("#doctor-problems > li").count() == len(wrong)
        quiet = view.page.locator("#doctor-rest-list li")
        await expect(quiet.first).to_be_hidden()
        await view.page.locator("#doctor-rest-title").click()
        await expect(quiet).to_have_count(len(checks) - len(wrong))
        await expect(quiet.first).to_be_visible()


async def test_sliders_show_the_preview_of_other_weights(installed: Installation, browser: Browser) -> None:
    weights = {"queue": 0.0, "gpuPrefixCache": 0.05, "cpuPrefixCache": 0.1}
    found = await installed.served.post("/v1/weights/preview", weights)
    expected = await installed.decisions_changed_by(
        {"queue-scorer": 0, "gpu-prefix-cache-scorer": 0.05, "cpu-prefix-cache-scorer": 0.1}
    )
    assert (found["decisions"], found["changed"]) == expected
    assert found["changed"] > 0
    async with open_page(browser, f"{installed.url}/ui") as view:
        await expect(view.page.get_by_role("button", name="Apply")).to_be_disabled()
        for name, weight in weights.items():
            slider = view.page.get_by_label(name)
            await slider.focus()
            await view.page.keyboard.press("Home")
            for _ in range(round(weight / 0.05)):
                await view.page.keyboard.press("ArrowRight")
        outcome = view.page.locator("#weights-outcome")
        await expect(outcome).to_contain_text(
            f"{found['changed']} of the last {found['decisions']} decisions"
        )
        after, before = figures(await outcome.inner_text())[3:]
        assert after == rounded(100 * found["usableTokensAfter"] / found["tokens"], 1)
        assert before == rounded(100 * found["usableTokensBefore"] / found["tokens"], 1)
        for number, endpoint in enumerate(found["endpoints"], 1):
            row = await cells(view, f"#weights-picks tbody tr:nth-child({number})")
            assert row["Endpoint"] == endpoint["name"]
            assert figures(row["Picked"]) + figures(row["Would be"]) == [
                endpoint["before"],
                rounded(endpoint["after"], 1),
            ]
        moved = await view.page.locator("#weights-moved li").all_inner_texts()
        assert [line.split()[1] for line in moved] == [
            each["decision"]["requestId"] for each in found["moved"]
        ]
        await view.page.get_by_role("button", name="Back to those in force").click()
        await expect(outcome).to_contain_text("Move a slider")
        await expect(view.page.get_by_role("button", name="Apply")).to_be_disabled()
    assert (await installed.served.get("/v1/weights"))["generation"] == 1


async def test_page_can_be_used_by_keyboard_alone(installed: Installation, browser: Browser) -> None:
    async with open_page(browser, f"{installed.url}/ui") as view:
        await expect(view.page.locator("#doctor-problems > li").first).to_be_visible()
        await expect(view.page.locator("#weights-sliders li").first).to_be_visible()
        wanted = await view.value(FOCUSABLE)
        await view.page.keyboard.press("Tab")
        assert await view.value("document.activeElement.innerText") == "To the fleet"
        await expect(view.page.get_by_text("To the fleet")).to_be_in_viewport()
        met = 1
        while True:
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert await view.value(outline) != "none", await view.value("document.activeElement.outerHTML")
            await view.page.keyboard.press("Tab")
            if await view.value("document.activeElement === document.body"):
                break
            met += 1
        assert met == wanted > 30
        await view.page.keyboard.press("Tab")
        await view.page.keyboard.press("Enter")
        assert await view.value("document.activeElement.id") == "fleet"


async def test_updates_move_nothing_and_stop_when_the_page_is_hidden(
    installed: Installation, browser: Browser
) -> None:
    async with open_page(browser, f"{installed.url}/ui") as view:
        await expect(view.page.locator("#doctor-problems > li").first).to_be_visible()
        await expect(view.page.locator("#audit-table tbody tr").first).to_be_visible()
        before = await view.value(BOXES)
        first = await view.page.locator(DECISIONS).get_by_role("button").first.inner_text()
        for number in range(3):
            await installed.chat("You are asked again.", f"Question {number}")
        await expect(view.page.locator(DECISIONS).get_by_role("button").first).not_to_have_text(first)
        assert await view.value(BOXES) == before

        await view.value(HIDE, True)
        await installed.served.until_metric("kvatlas_live_viewers 0.0")
        await view.value(HIDE, False)
        await installed.served.until_metric("kvatlas_live_viewers 1.0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [pytest.param(WIDE, id="wide"), pytest.param(NARROW, id="narrow")])
async def test_page_fits_is_legible_and_contacts_no_other_server(
    size: tuple[int, int],
    scheme: Scheme,
    installed: Installation,
    shared_chat: Question,
    browser: Browser,
    pictures: Path | None,
) -> None:
    async with open_page(browser, f"{installed.url}/ui", size=size, scheme=scheme) as view:
        await expect(view.page.locator(DECISIONS).first).to_be_visible()
        await expect(view.page.locator(ROWS).first).to_be_visible()
        await expect(view.page.locator("#doctor-problems > li").first).to_be_visible()
        await find_prompt(view, shared_chat)
        await view.page.get_by_label("gpuPrefixCache").fill("0")
        await expect(view.page.locator("#weights-picks tbody tr")).to_have_count(N_SERVERS)
        await view.value("document.activeElement.blur(), scrollTo(0, 0)")
        for name, selector in (("page", None), ("decision", DECISIONS)):
            if selector is not None:
                await view.page.locator(selector).get_by_role("button").nth(3).click()
                await expect(view.page.locator("#decision-body tbody tr").first).to_be_visible()
            assert await view.value("document.documentElement.scrollWidth") == size[0]
            looked, hard = await hard_to_read(view.page)
            assert looked > 100
            assert hard == []
            picture = f"dashboard-{name}-{'wide' if size == WIDE else 'narrow'}-{scheme}.png"
            if pictures is not None and picture in PICTURES:
                await write_picture(view.page, pictures / picture)
        assert {urlsplit(request.url).netloc for request in view.requests} == {urlsplit(installed.url).netloc}
        assert view.errors == []
