"""A shadow whose file changes while requests are under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from kvatlas.configs.observers import ShadowConfig
from kvatlas.routing.observers.shadow.shadow import Shadow
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.shadow import Draws, Repeat
from support.fleets import make_config
from support.rating import decide
from support.stages import ALWAYS, FLEET, staged
from support.told import OFFERED, Told

VIEW = RequestView(model="m", now=1.0, n_tokens=160)
STAGES = ("decode", "prefill")


def written(file: Path, *names: str) -> Path:
    """Write a configuration with `told` in each of these profiles; two are for decode and prefill."""
    stages = dict(zip(STAGES, names, strict=False))
    handler = {
        "type": "disagg-profile-handler",
        "parameters": {"profiles": stages, "deciders": {"prefill": ALWAYS}},
    }
    more: list[dict[str, Any]] = [{"type": ALWAYS}, handler] if len(names) > 1 else []
    filters = [f"{each}-filter" for each in STAGES]
    content = {
        "apiVersion": "kvatlas/v1",
        "kind": "KVAtlasConfig",
        "plugins": [{"type": each} for each in ("told", *filters)] + more,
        "schedulingProfiles": [
            {"name": name, "plugins": [{"pluginRef": "told"}, {"pluginRef": each}]}
            for name, each in zip(names, filters, strict=False)
        ],
    }
    file.write_bytes(msgspec.json.encode(content))
    return file


async def reading(shadow: Shadow) -> Shadow:
    """Let the shadow read its file, which takes two looks."""
    await shadow.look()
    await shadow.look()
    assert shadow.refusal == ""
    return shadow


@pytest.mark.parametrize(
    ("before", "after", "n_stages"),
    [
        pytest.param(STAGES, STAGES, 2, id="same_profiles"),
        pytest.param(STAGES, ("decode", "renamed"), 2, id="profile_renamed"),
        pytest.param(STAGES, ("decode",), 2, id="stages_together"),
        pytest.param(("decode",), ("renamed", "prefill"), 1, id="stages_apart"),
    ],
)
async def test_plugin_that_is_kept_sees_the_end_of_earlier_requests_when_the_file_changes(
    before: tuple[str, ...],
    after: tuple[str, ...],
    n_stages: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Told] = []
    monkeypatch.setattr("kvatlas.routing.plan.entry_points.entry_points", OFFERED.select)
    monkeypatch.setattr(Told, "made", made)
    live = staged(ALWAYS, deciders={"prefill": ALWAYS}).profile
    file = tmp_path / "new.yaml"
    shadow = await reading(Shadow(ShadowConfig(file=str(written(file, *before))), make_config()))
    draws = Draws(Random(1).random)
    decision = decide(live, VIEW, FLEET, rng=draws)
    learning = shadow.routed(VIEW, decision, Repeat(decision.candidates, draws))
    await asyncio.sleep(0)

    written(file, *after)
    await reading(shadow)
    shadow.first_token(decision, learning, ttft_s=0.1)
    shadow.ended(decision, learning, tpot_s=0.01, n_output=7)
    await asyncio.sleep(0)

    (told,) = [each for each in made if each.calls]  # the file was also checked, with plugins of its own
    calls = [(name, found.picked[0]) for name, found in told.calls]
    answering, computing = decision.picked[0], decision.computing.picked[0]
    picked = [answering, computing][:n_stages]
    assert calls == [
        *(("picked", each) for each in picked),
        ("answered", computing),
        ("generated", answering),
        *(("ended", each) for each in picked),
    ]
    assert shadow.faults == {}


async def test_policy_is_not_compared_with_plugins_whose_stages_it_would_not_have() -> None:
    live = staged(ALWAYS, deciders={"prefill": ALWAYS}).config

    shadow = Shadow(ShadowConfig(policy="latency"), live)
    assert (
        shadow.refusal.startswith("policy 'latency' in place of plugins"),
        shadow.draws(Random(1).random),
    ) == (
        True,
        None,
    )

    shadow.follow(make_config(disaggregation={"uncachedTokens": 1}))
    assert shadow.refusal == ""
