"""`joint-cost-handler`: which placement is the cheapest, and what happens if a stage has no server."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvatlas.routing.errors import SchedulingError
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.scheduler import Deciding
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.latency.placements import TERMS, TransferParams
from support.candidates import endpoint as anyone
from support.candidates import fleets, held, load
from support.joint import joint, options_of, pair_of, scheduler, send
from support.rating import decide
from support.stages import MEDIA, server
from support.tables import key_table
from support.tree import ROOT

SLOW: dict[str, Any] = {
    "prefillTokensPerSecond": 1000.0,
    "overheadMs": 10.0,
    "fit": False,
    "decodeWeight": 0.0,
}
"""Costs at which a token of a prompt takes a millisecond."""

PAGE = ROOT / "docs" / "scorers" / "joint-cost-handler.md"
SHOWN = ("overhead", "prefill", "transfer", "step", "decoding", "others")

FAST = {"gigabitsPerSecond": 1000.0, "kvBytesPerToken": 125_000.0, "latencyMs": 1.0}
"""Transfers of which a thousand tokens take a millisecond, and one more."""


def request(n_tokens: int = 160, **more: Any) -> RequestView:
    return replace(RequestView(model="m", now=0.0, n_tokens=n_tokens), **more)


def placed(*fleet: Candidate, of: RequestView | None = None, **parameters: Any) -> Decision:
    given = SLOW | {"transfer": FAST} | parameters
    return decide(profile(json.dumps(given)), of or request(), fleet)


@cache
def profile(parameters: str) -> Deciding:
    """Return what decides by these parameters; it learns nothing, so that tests share it."""
    return joint(**json.loads(parameters)).profile


def decoder(
    name: str = "d", *, cached: int = 0, ahead: int = 0, running: int = 0, kv: float = 0.0
) -> Candidate:
    return server_of(name, "decode", cached=cached, ahead=ahead, of=load(running=running, kv=kv))


def prefiller(name: str = "p", *, cached: int = 0, ahead: int = 0, **labels: str) -> Candidate:
    return server_of(name, "prefill", cached=cached, ahead=ahead, **labels)


def server_of(name: str, role: str, *, cached: int, ahead: int, of: Any = None, **labels: str) -> Candidate:
    return anyone(
        name,
        of=of or load(),
        prefix=held(gpu=cached),
        in_flight=(1, ahead) if ahead else (0, 0),
        labels={ROLE_LABEL: role, **labels},
    )


@pytest.mark.parametrize(
    ("fleet", "pair"),
    [
        pytest.param((decoder(), prefiller()), (None, "d"), id="idle_server_computes_itself"),
        pytest.param((decoder(ahead=500), prefiller()), ("p", "d"), id="prompts_ahead"),
        pytest.param((decoder(ahead=500), prefiller(ahead=900)), (None, "d"), id="more_ahead_elsewhere"),
        pytest.param((decoder(), prefiller(cached=9)), ("p", "d"), id="cached_elsewhere"),
        pytest.param((decoder(cached=9), prefiller(cached=10)), (None, "d"), id="cached_on_both"),
        pytest.param(
            (decoder("d0", ahead=500), decoder("d1", ahead=200, cached=9), prefiller(ahead=300)),
            (None, "d1"),
            id="another_decode_server",
        ),
        pytest.param(
            (decoder("d0", ahead=900), decoder("d1", ahead=500), prefiller("p0", ahead=30), prefiller("p1", cached=2)),
            ("p1", "d1"),
            id="best_of_both",
        ),
    ],
)  # fmt: skip
def test_cheapest_placement_wins(fleet: tuple[Candidate, ...], pair: tuple[str | None, str]) -> None:
    decision = placed(*fleet)

    assert pair_of(decision) == pair
    assert decision.placement is not None
    assert decision.placement.kind == ("prefill-decode" if pair[0] else "decode-only")
    headers = {"x-prefiller-host-port": f"{pair[0]}:8000"} if pair[0] else {}
    assert decision.placement.headers == headers


def test_prefill_server_need_not_wait_for_the_decode_server_twice() -> None:
    """What is ahead on the decode server is computed while the prompt is computed elsewhere."""
    decision = placed(decoder(ahead=100), prefiller())

    assert pair_of(decision) == ("p", "d")
    chosen = options_of(decision)[0]
    assert chosen.terms_ms["prefill"] > 160
    assert chosen.terms_ms["wait"] == 0.0
    later = options_of(placed(decoder(ahead=1000), prefiller()))[0]
    assert later.terms_ms["wait"] == pytest.approx(1000 - 160 - 10, abs=3)


def transfer_ms(decode: Candidate, **transfer: Any) -> float:
    """Return the milliseconds of a transfer of which a token takes one, and a millisecond beside."""
    options = options_of(placed(decode, prefiller(), transfer=FAST | {"gigabitsPerSecond": 1.0} | transfer))
    return next(each.terms_ms["transfer"] for each in options if each.prefill is not None)


@pytest.mark.parametrize(("only_missing", "tokens"), [(True, 160 - 64), (False, 160)])
def test_blocks_that_the_decode_server_has_are_not_transferred(only_missing: bool, tokens: int) -> None:
    assert transfer_ms(decoder(cached=4), onlyMissing=only_missing) == pytest.approx(tokens + 1)


def test_blocks_on_slower_tiers_of_the_decode_server_are_transferred() -> None:
    assert transfer_ms(anyone("d", prefix=held(cpu=9))) == pytest.approx(161)


def test_fuller_batch_costs_more_where_generating_counts() -> None:
    fleet = decoder("d0", running=50), decoder("d1", running=49, ahead=2), prefiller()

    assert pair_of(placed(*fleet))[1] == "d0"
    assert pair_of(placed(*fleet, decodeWeight=1.0))[1] == "d1"


def test_prompt_is_not_computed_among_many_responses_where_generating_counts() -> None:
    fleet = decoder(running=50), prefiller(ahead=100)

    assert pair_of(placed(*fleet)) == (None, "d")
    assert pair_of(placed(*fleet, decodeWeight=0.1)) == ("p", "d")


def test_fuller_memory_costs_more() -> None:
    assert pair_of(placed(decoder("d0", kv=0.9), decoder("d1", kv=0.2)))[1] == "d1"


def test_server_of_both_roles_is_no_pair_with_itself() -> None:
    fleet = [server(name, "prefill-decode") for name in "ab"]

    decision = placed(*fleet)

    assert decision.stages == ()
    assert {(each.prefill, each.decode) for each in options_of(decision)} <= {
        (None, "a"), (None, "b"), ("a", "b"), ("b", "a")
    }  # fmt: skip
    assert pair_of(placed(server("a", "prefill-decode"))) == (None, "a")


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.6, 0.99])
def test_equal_costs_are_a_tie_that_chance_decides(draw: float) -> None:
    fleet = [*(decoder(f"d{n}", ahead=900) for n in range(2)), *(prefiller(f"p{n}") for n in range(2))]

    decision = decide(joint(**SLOW, transfer=FAST).profile, request(), fleet, rng=lambda: draw)

    assert decision.tie
    assert set(decision.tied) == {"d0", "d1"}
    assert decision.computing.tie


def test_all_tied_servers_are_picked_in_turn() -> None:
    fleet = [*(decoder(f"d{n}", ahead=900) for n in range(2)), *(prefiller(f"p{n}") for n in range(2))]
    made, rng = joint(**SLOW, transfer=FAST).profile, random.Random(1)

    seen = {pair_of(decide(made, request(), fleet, rng=rng.random)) for _ in range(50)}

    assert seen == set(itertools.product(("p0", "p1"), ("d0", "d1")))


def test_options_are_the_placement_and_what_it_was_compared_with() -> None:
    decision = placed(
        decoder("d0", kv=1.0), decoder("d1", ahead=150), prefiller("p0"), prefiller("p1", ahead=9)
    )

    options = options_of(decision)
    assert [(each.prefill, each.decode) for each in options] == [("p0", "d1"), (None, "d1"), ("p1", "d1")]
    assert options[0].total_ms == min(each.total_ms for each in options)
    assert all(tuple(each.terms_ms) == TERMS for each in options)
    for each in (decision, decision.computing):
        assert each.first.terms[0].rating.raw == pytest.approx(options[0].total_ms)
    kept = decision.lasting()
    assert kept.placement is not None
    assert kept.placement.options == options


def test_options_of_a_server_alone_have_the_best_pair() -> None:
    options = options_of(placed(decoder(), prefiller("p0", ahead=50), prefiller("p1")))

    assert [(each.prefill, each.decode) for each in options] == [(None, "d"), ("p1", "d")]


@pytest.mark.parametrize(
    ("fleet", "parameters", "of", "pair"),
    [
        pytest.param((decoder(),), {}, request(), (None, "d"), id="left_to_the_decode_server"),
        pytest.param((decoder(),), {"missingStage": "refuse"}, request(), None, id="refused"),
        pytest.param(
            (decoder(cached=9),),
            {"missingStage": "refuse", "uncachedTokens": 17},
            request(),
            (None, "d"),
            id="not_wanted",
        ),
        pytest.param(
            (decoder(),),
            {"missingStage": "refuse"},
            request(has_body=False),
            (None, "d"),
            id="no_body",
        ),
        pytest.param(
            (decoder(ahead=900), prefiller()), {}, request(has_body=False), (None, "d"), id="no_prompt_to_compute"
        ),
        pytest.param(
            (decoder(ahead=900), prefiller()), {"uncachedTokens": 161}, request(), (None, "d"), id="too_short"
        ),
        pytest.param(
            (decoder("d0", ahead=900), decoder("d1", cached=4, ahead=990), prefiller()),
            {"uncachedTokens": 160},
            request(),
            ("p", "d0"),
            id="too_short_for_one",
        ),
    ],
)  # fmt: skip
def test_stage_without_need_or_server(
    fleet: tuple[Candidate, ...],
    parameters: dict[str, Any],
    of: RequestView,
    pair: tuple[str | None, str] | None,
) -> None:
    decision = placed(*fleet, of=of, **parameters)

    assert (pair_of(decision) if decision.picked else None) == pair
    assert decision.placement is not None
    assert decision.placement.lacking == (None if pair else "prefill")


def test_no_decode_server_is_no_stage_at_all() -> None:
    decision = placed(prefiller())

    assert decision.picked == ()
    assert decision.placement is not None
    assert (decision.placement.kind, decision.placement.lacking) == ("none", None)


@pytest.mark.parametrize(
    ("encoders", "missing", "kind", "lacking"),
    [
        pytest.param(("e",), "refuse", "encode-prefill-decode", None, id="encoder"),
        pytest.param((), "refuse", "none", "encode", id="refused"),
        pytest.param((), "skip", "prefill-decode", None, id="skipped"),
    ],
)
def test_media_have_encode_servers(
    encoders: tuple[str, ...], missing: str, kind: str, lacking: str | None
) -> None:
    plan = joint(
        MEDIA,
        names=("decode", "prefill", "encode"),
        deciders={"encode": MEDIA},
        missingStage=missing,
        **SLOW,
    )
    fleet = decoder(ahead=900), prefiller(), *(server(name, "encode") for name in encoders)

    decision = decide(plan.profile, request(media=(1,)), fleet)

    assert decision.placement is not None
    assert (decision.placement.kind, decision.placement.lacking) == (kind, lacking)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"profiles": {"prefill": "first"}}, "found 'first', expected a profile"),
        ({"profiles": {"decode": "last"}}, "found 'last', expected a profile"),
        ({"deciders": {"encode": MEDIA}}, "found 'encode', expected a profile"),
        ({"loadTokensPerSecond": {"disk": 5}}, "found 'disk', expected a configured tier"),
    ],
)
def test_names_that_nothing_has_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(SchedulingError, match=error):
        joint(MEDIA, **parameters)


@given(st.data())
def test_no_single_placement_is_cheaper(data: st.DataObject) -> None:
    """The matrix says what each pair of its own says; without prices, which are of the whole fleet."""
    n, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    figures = st.tuples(st.integers(0, 10), st.integers(0, 1000))
    decode = [
        decoder(f"d{k}", cached=c, ahead=a) for k, (c, a) in enumerate(data.draw(st.tuples(*[figures] * n)))
    ]
    prefill = [
        prefiller(f"p{k}", cached=c, ahead=a) for k, (c, a) in enumerate(data.draw(st.tuples(*[figures] * m)))
    ]
    settings: dict[str, Any] = {"priceFactor": 0.0}

    chosen = options_of(placed(*decode, *prefill, **settings))[0].total_ms

    one_by_one = [
        options_of(placed(*fleet, **settings))[0].total_ms for fleet in itertools.product(decode, prefill)
    ]
    assert chosen == pytest.approx(min(one_by_one))


LEARNING = scheduler()
"""Learns from whatever comes, so that each example is of another state."""


@given(fleets(min_size=1), st.integers(0, 10**7))
def test_any_fleet_has_a_placement_or_none(fleet: list[Candidate], n_tokens: int) -> None:
    made = LEARNING
    view = request(n_tokens)

    decision = decide(made, view, fleet)

    assert decision.faults == ()
    if decision.picked:
        assert made.picked(view, decision) == ()
        assert made.answered(decision, ttft_s=0.5) == ()
        assert made.ended(decision, tpot_s=0.02, n_output=5) == ()
        assert decision.totals[decision.row] == max(decision.totals)


def test_example_of_the_page_is_what_it_costs() -> None:
    fleet = [
        anyone(
            name,
            of=load(running=running),
            prefix=held(gpu=blocks, n_blocks=500),
            labels={ROLE_LABEL: name.partition("-")[0]},
        )
        for name, running, blocks in (("decode-0", 20, 0), ("decode-1", 20, 375), ("prefill-0", 0, 375))
    ]

    options = options_of(decide(joint(fit=False).profile, request(8000), fleet))

    rows = [
        f"| {f'{each.prefill} -> {each.decode}' if each.prefill else f'{each.decode} alone'} | "
        + " | ".join(f"{round(ms)}" for name, ms in each.terms_ms.items() if name in SHOWN)
        + f" | {round(each.total_ms)} |"
        for each in options
    ]
    zero = [name for name in TERMS if name not in SHOWN]
    assert not any(each.terms_ms[name] for each in options for name in zero)
    assert "\n".join(rows) in PAGE.read_text()


def test_page_has_the_keys_of_transfers() -> None:
    assert key_table(TransferParams) in PAGE.read_text()


def test_costs_of_pairs_and_requests_under_way_are_shared_with_other_processes() -> None:
    here, there = scheduler(), scheduler()
    fleet = [server("d", "decode"), server("p", "prefill")]
    sent = send(there, fleet, n_tokens=4000)
    assert set(here.shared.sums) == set(there.shared.sums)
    names = {name.rpartition("/")[2] for name in here.shared.sums}
    assert names == {"accounts", "ttft", "tpot", "pairs", "links", "lengths", "means", "rates"}

    before = decide(here, request(4000), fleet)
    for name, theirs in there.shared.sums.items():
        for key in theirs.known():
            here.shared.sums[name].take("other/1", key, theirs.own(key, sent.at), now=0.0)
    after = decide(here, request(4000), fleet)

    assert options_of(after)[0].total_ms > options_of(before)[0].total_ms
