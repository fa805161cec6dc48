"""The audit of requests of which the prompt is computed elsewhere: a running process, engines and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.ext_proc import response_body, response_headers
from support.fleets import make_endpoint
from support.local_process import PROMPT, LocalProcess, local_process
from support.stage_servers import engine, sglang_metrics, vllm_metrics
from support.waiting import until


async def audited(process: LocalProcess) -> dict[str, Any]:
    """Return endpoint -> its audit."""
    async with process.session.get(f"{process.url}/v1/audit") as response:
        return {each["name"]: each for each in (await response.json())["endpoints"]}


def answer(cached_tokens: int) -> bytes:
    usage = {"prompt_tokens": len(PROMPT), "prompt_tokens_details": {"cached_tokens": cached_tokens}}
    return json.dumps({"usage": usage}).encode()


@pytest.mark.parametrize(
    ("page", "cached_tokens", "endpoints"),
    [
        pytest.param(vllm_metrics(), 0, ["p0"], id="count_of_the_prefill_server"),
        pytest.param(vllm_metrics(), len(PROMPT) - 1, [], id="count_of_all_that_was_received"),
        pytest.param(sglang_metrics(), 0, [], id="count_of_the_decode_server"),
    ],
)
async def test_count_in_an_answer_is_compared_if_it_is_the_prefill_servers(
    page: str, cached_tokens: int, endpoints: list[str]
) -> None:
    async with (
        engine(page, {}) as address,
        local_process(
            *(
                make_endpoint(name, number, metrics=f"http://{address}/metrics", labels={ROLE_LABEL: role})
                for number, (name, role) in enumerate({"d0": "decode", "p0": "prefill"}.items(), 1)
            ),
            disaggregation={"uncachedTokens": 16},
        ) as process,
    ):

        async def is_read() -> bool:
            statuses = [process.app.fleet.scrape_status(name) for name in ("d0", "p0")]
            return all(status is not None and status.facts for status in statuses)

        await until(is_read, what="the engines' metrics")
        ends = (
            response_headers(("content-type", "application/json")),
            response_body(answer(cached_tokens), end=True),
        )
        await process.send_requests(2, responses=ends)
        async with process.session.get(f"{process.url}/v1/decisions?limit=1") as response:
            newest = (await response.json())["decisions"][0]
        found = await audited(process)
    assert newest["stages"] == {"prefill": ["p0"]}
    assert list(found) == endpoints
