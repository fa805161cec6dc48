from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.configs.observers import ShadowConfig
from kvatlas.configs.policies import POLICY_NAMES
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.routing.observers.shadow import shadow as module
from kvatlas.routing.observers.shadow.shadow import Shadow
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.plan import make_plan
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.scheduler import Deciding
from kvatlas.scorers.core.shadow import Draws, Repeat, ShadowTally
from support.candidates import endpoint, held, load
from support.fleets import make_config
from support.rating import decide
from support.stages import FLEET as STAGED
from support.waiting import until

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
WEIGHTS = HEAD + "weights: {queue: 1, kvCacheUtilization: 0, gpuPrefixCache: 0, cpuPrefixCache: 0}\n"
LEARNING = (
    HEAD
    + """
plugins:
  - {type: prefix-cache-affinity-filter}
  - {type: no-hit-lru-scorer}
  - {type: session-affinity-scorer}
  - {type: latency-cost-scorer}
  - {type: prefix-cache-scorer}
  - {type: weighted-random-picker}
"""
)

"""With filters, scorers that learn from picks and from answers, and a picker that goes by chance."""

VIEW = RequestView(model="m", now=1.0, n_tokens=160)
FLEET = [
    endpoint("a", of=load(waiting=5), prefix=held(gpu=10)),
    endpoint("b", of=load(waiting=0), prefix=held(gpu=1)),
]


def make_shadow(file: Path, config: KVAtlasConfig | None = None, **options: Any) -> Shadow:
    return Shadow(
        ShadowConfig(file=str(file), **options),
        config or make_config(),
        rng=Random(1).random,
        clock=lambda: 0.0,
        cpu=lambda: 0.0,
    )


async def reading(shadow: Shadow) -> Shadow:
    """Let the shadow read its file, which takes two looks."""
    await shadow.look()
    await shadow.look()
    return shadow


async def settled() -> None:
    """Run what the loop's next step has to do."""
    await asyncio.sleep(0)


def routed(shadow: Shadow, profile: Deciding, view: RequestView, fleet: list[Candidate]) -> Decision:
    """Make a live decision, and pass it to the shadow."""
    return learned(shadow, profile, view, fleet)[0]


def learned(
    shadow: Shadow, profile: Deciding, view: RequestView, fleet: list[Candidate]
) -> tuple[Decision, Deciding | None]:
    """Make a live decision, pass it to the shadow, and return which of its profiles learns from the request."""
    draws = shadow.draws(Random(view.now).random)
    assert draws is not None
    decision = decide(profile, view, fleet, rng=draws)
    if not decision.picked:
        return decision, None
    profile.picked(view, decision)
    return decision, shadow.routed(view, decision, Repeat(decision.candidates, draws))


def live_profile() -> Deciding:
    return make_plan(make_config(weights={"queue": 0, "gpuPrefixCache": 1})).profile


def random_fleet(rng: Random) -> list[Candidate]:
    """Endpoints of which many tie."""
    return [
        endpoint(
            name,
            of=load(waiting=rng.randrange(3), kv=rng.choice((0.0, 0.5))),
            prefix=held(gpu=rng.choice((0, 0, 9)), cpu=rng.choice((0, 9))),
            in_flight=(rng.randrange(3), rng.choice((0, 1000))),
        )
        for name in "abcd"[: rng.randrange(1, 5)]
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HEAD, id="default"),
        pytest.param(LEARNING, id="learning"),
        pytest.param(HEAD + "policy: latency\n", id="latency"),
    ],
)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_shadow_equal_to_the_live_configuration_never_disagrees(text: str, seed: int) -> None:
    async def run() -> Shadow:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "same.yaml"
            file.write_text(text)
            config = load_scheduled(file).config
            shadow = await reading(make_shadow(file, config))
        profile, rng = make_plan(config).profile, Random(seed)
        for number in range(30):
            headers = {"x-session-id": rng.choice("st")}
            view = RequestView(model="m", now=float(number), n_tokens=160, headers=headers)
            decision, learning = learned(shadow, profile, view, random_fleet(rng))
            if rng.random() < 0.7:
                ttft_s = rng.random()
                profile.answered(decision, ttft_s=ttft_s)
                shadow.first_token(decision, learning, ttft_s=ttft_s)
            if rng.random() < 0.7:
                tpot_s, n_output = rng.uniform(0.01, 0.1), rng.choice((None, 3, 2000))
                profile.ended(decision, tpot_s=tpot_s, n_output=n_output)
                shadow.ended(decision, learning, tpot_s=tpot_s, n_output=n_output)
            if rng.random() < 0.7:
                await settled()
        await settled()
        return shadow

    shadow = asyncio.run(run())
    assert (shadow.refusal, shadow.faults) == ("", {})
    assert shadow.outcomes == {
        "agreed": 30,
        "disagreed": 0,
        "refused": 0,
        "not_chosen": 0,
        "over_budget": 0,
    }
    assert (shadow.tally.cached_gain.mean, shadow.tally.cached_gain.margin) == (0.0, 0.0)


async def test_other_weights_pick_another_endpoint_and_change_nothing_of_the_decision(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    shadow = make_shadow(file)
    assert (shadow.draws(Random(1).random), shadow.refusal) == (None, "it was not read yet")
    await reading(shadow)

    decision = routed(shadow, live_profile(), VIEW, FLEET)
    assert shadow.tally.compared == 0, "the request has its answer first"
    await settled()
    assert decision.picked == ("a",)
    assert shadow.outcomes["disagreed"] == 1
    assert shadow.tally.cached_gain.mean == -9 * 16
    assert shadow.tally.terms["queue-scorer"].mean == 1.0


async def test_part_of_the_requests_is_left_out_but_learned_from(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    shadow = await reading(make_shadow(file, fraction=0.25))
    for _ in range(400):
        routed(shadow, live_profile(), VIEW, FLEET)
    await settled()

    assert shadow.not_chosen + shadow.tally.compared == 400
    assert 60 < shadow.tally.compared < 140


async def test_requests_are_left_out_when_its_share_of_a_core_is_used_up(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    now, ticks = [0.0], iter(range(1_000_000))
    shadow = Shadow(
        ShadowConfig(file=str(file), max_cpu=0.05),
        make_config(),
        rng=lambda: 0.0,
        clock=lambda: now[0],
        cpu=lambda: next(ticks) * 0.02,  # each decision takes 20 ms
    )
    await reading(shadow)
    for _ in range(100):
        routed(shadow, live_profile(), VIEW, FLEET)
        await settled()
        now[0] += 0.1
    assert 0.05 * 10 - 0.02 < shadow.cpu_s < 0.05 * (10 + 1) + 0.03
    assert shadow.tally.compared + shadow.over_budget == 100


async def test_file_that_changes_is_read_and_the_count_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    shadow = await reading(make_shadow(file))
    routed(shadow, live_profile(), VIEW, FLEET)
    await settled()
    file.write_text(HEAD + "weights: {queue: nonsense}\n")
    await reading(shadow)
    assert "queue" in shadow.refusal
    assert shadow.tally.compared == 1, "what was in force goes on"
    file.write_text(HEAD + "plugins: [{type: prefix-cache-scorer}]\n")
    await reading(shadow)
    assert (shadow.refusal, shadow.tally.compared) == ("", 0)
    routed(shadow, live_profile(), VIEW, FLEET)
    await settled()
    assert shadow.outcomes["agreed"] == 1


async def test_plugin_that_names_a_tier_of_another_configuration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    tape = "tiers: [{name: tape}]\nplugins: [{type: prefix-cache-scorer, parameters: {tier: tape}}]\n"
    file.write_text(HEAD + tape)
    shadow = await reading(make_shadow(file))

    assert "tape" in shadow.refusal
    assert shadow.draws(Random(1).random) is None


async def test_count_begins_anew_with_another_live_configuration(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    shadow = await reading(make_shadow(file))
    profile = live_profile()
    for generation in (1, 1, 2):
        draws = Draws(Random(1).random)
        decision = decide(profile, VIEW, FLEET, rng=draws)
        repeat = Repeat(decision.candidates, draws)
        shadow.routed(VIEW, msgspec.structs.replace(decision, config_generation=generation), repeat)
    await settled()

    assert shadow.tally.compared == 1


async def test_faults_of_its_plugins_are_counted_and_routing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("kvatlas.scorers.no_hit_lru.NoHitLruScorer.rate", broken)
    monkeypatch.setattr("kvatlas.scorers.no_hit_lru.NoHitLruScorer.picked", broken)
    file = tmp_path / "new.yaml"
    file.write_text(HEAD + "plugins: [{type: no-hit-lru-scorer}]\n")
    shadow = await reading(make_shadow(file))
    decision = routed(shadow, live_profile(), VIEW, FLEET)
    await settled()

    assert decision.picked == ("a",)
    assert shadow.faults == {("no-hit-lru-scorer", "raised"): 2}


async def test_first_tokens_are_predicted_once_enough_were_seen(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    shadow = await reading(make_shadow(file))
    rng = Random(3)
    profile = live_profile()
    for number in range(400):
        fleet = [endpoint("a", prefix=held(gpu=rng.randrange(11))), endpoint("b", of=load(waiting=0))]
        view = RequestView(model="m", now=float(number), n_tokens=rng.randrange(200, 20_000))
        decision, learning = learned(shadow, profile, view, fleet)
        shadow.first_token(decision, learning, ttft_s=0.5 + view.n_tokens / 1000)
        await settled()

    assert 0 < shadow.tally.ttft_gain_s.n < 400
    assert shadow.tally.ttft_gain_s.mean <= 0


async def test_answers_are_passed_over_before_the_file_is_read(tmp_path: Path) -> None:
    shadow = make_shadow(tmp_path / "absent.yaml")
    profile = live_profile()
    draws = Draws(Random(1).random)
    decision = decide(profile, VIEW, FLEET, rng=draws)
    assert shadow.routed(VIEW, decision, Repeat(decision.candidates, draws)) is None
    shadow.first_token(decision, None, ttft_s=1.0)
    await settled()
    await reading(shadow)

    assert shadow.tally.compared == 0
    await shadow.stop()


async def test_file_is_followed_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    file = tmp_path / "new.yaml"
    file.write_text(WEIGHTS)
    shadow = make_shadow(file)
    shadow.start()

    def is_read() -> bool:
        return not shadow.refusal

    check: Callable[[], bool] = is_read
    await until(check, what="the file")
    await shadow.stop()
    assert shadow.age_s == 0.0


async def test_policy_decides_at_once_and_follows_the_live_configuration() -> None:
    shadow = Shadow(ShadowConfig(policy="weights"), make_config(policy="latency"), rng=lambda: 0.0)
    live = make_plan(make_config(policy="latency")).profile
    shadow.start()
    assert (shadow.name, shadow.refusal) == ("weights", "")
    by_queue = routed(shadow, live, VIEW, FLEET)
    await settled()
    assert (shadow.tally.agreed, shadow.tally.disagreed) == (0, 1)

    weights = {"queue": 0, "kvCacheUtilization": 0, "gpuPrefixCache": 1, "cpuPrefixCache": 0}
    shadow.follow(make_config(policy="latency", weights=weights))
    by_prefix = routed(shadow, live, VIEW, FLEET)
    await settled()

    assert by_queue.best.name == by_prefix.best.name
    assert (shadow.tally.agreed, shadow.tally.disagreed) == (1, 0)
    await shadow.stop()


async def test_expected_times_of_both_picks_add_up_to_the_gain() -> None:
    tally = ShadowTally()
    live, other = (decide(make_plan(make_config(policy=each)).profile, VIEW, FLEET) for each in POLICY_NAMES)

    tally.add(live, other, {"a": 0.3, "b": 0.5})

    assert tally.ttft_gain_s.mean == pytest.approx(tally.live_ttft_s.mean - tally.shadow_ttft_s.mean)
    assert tally.shadow_ttft_s.n == 1


@pytest.mark.parametrize("is_live", [True, False])
async def test_stages_are_those_of_the_file_whatever_the_live_configuration_has(
    is_live: bool, tmp_path: Path
) -> None:
    (tmp_path / "new.yaml").write_text(WEIGHTS + ("" if is_live else "disaggregation: {uncachedTokens: 1}\n"))
    live = make_config(**({"disaggregation": {"uncachedTokens": 1}} if is_live else {}))
    shadow = await reading(make_shadow(tmp_path / "new.yaml", live))

    routed(shadow, make_plan(live).profile, VIEW, list(STAGED))
    await settled()

    assert (shadow.refusal, shadow.tally.disagreed, shadow.faults) == ("", 1, {})


async def test_shadow_without_stages_learns_from_the_server_that_computed_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Decision] = []

    def answered(_: object, decision: Decision, *, ttft_s: float) -> None:
        told.append(decision)

    monkeypatch.setattr("kvatlas.scorers.latency.fleet_cost.FleetCostScorer.answered", answered)
    (tmp_path / "new.yaml").write_text(HEAD + "policy: latency\n")
    live = make_config(disaggregation={"uncachedTokens": 1})
    shadow = await reading(make_shadow(tmp_path / "new.yaml", live))
    decision, learning = learned(shadow, make_plan(live).profile, VIEW, list(STAGED))

    shadow.first_token(decision, learning, ttft_s=0.1)
    shadow.ended(decision, learning, tpot_s=0.01)
    await settled()

    assert ([each.picked for each in told], shadow.refusal, shadow.faults) == ([("p0",)], "", {})
