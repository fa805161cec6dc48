"""The doctor about endpoints whose blocks are learned from routing, and which need no events."""

from __future__ import annotations

from typing import Any

import pytest

from support.engine_metrics import metrics_of
from support.fleets import make_endpoint
from support.local_process import local_process
from support.scraping import metrics

TIERS = [{"name": "gpu", "media": ["GPU"], "source": "routing"}]
APPROXIMATE = {"autoTune": False, "blockSizeTokens": 64}


@pytest.mark.parametrize(
    "more", [pytest.param({}, id="stream"), pytest.param({"events": ""}, id="no_stream")]
)
async def test_neither_silence_nor_another_block_size_is_reported_of_endpoints_known_from_routing(
    more: dict[str, Any],
) -> None:
    async with (
        metrics_of(metrics(1).decode()) as (url, _),
        local_process(
            make_endpoint("a", metrics=url, **more), tiers=TIERS, approximate=APPROXIMATE
        ) as process,
    ):
        await process.until_state("load-known", "ok")
        process.age()
        checks = await process.checks()
    assert checks["events-heard"]["state"] == "unknown"
    assert checks["block-sizes"]["evidence"] == ["a: blocks of 64 tokens"]
