"""Predictions: a sent prompt counts as held until events arrive, the request fails, or its lifetime ends."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.fleet.drafters import LABEL
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.predictions import MAX_WAIT_S
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.settings import fleet_settings
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.match import PrefixMatch
from kvatlas.indexer.predicted import Prediction
from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.core.model import Candidate
from support.fleets import make_config, make_fleet
from support.payloads import payload

BLOCK, TTL_S = 4, 5.0
SENT = list(range(10 * BLOCK))
PREDICTING = make_config(predictions={"enabled": True, "ttl": f"{TTL_S:g}s"})
OTHER = SENT[: 3 * BLOCK] + [7] * 8 * BLOCK


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with make_fleet(PREDICTING) as fleet:
        for number, name in enumerate("ab", start=1):
            fleet.add(name, addresses(number, events="tcp://127.0.0.1:1"), {})
            tell(fleet, name, stored([99] * BLOCK))  # from its first event on an endpoint has a block size
        yield fleet


def addresses(number: int, *, events: str | None) -> EndpointAddresses:
    return EndpointAddresses(HostPort(f"10.0.0.{number}", 8000), None, (RankAddresses(0, events, None),))


def stored(tokens: list[int], *, begin: int = 0, size: int = BLOCK) -> BlockStored:
    """Return the event that stores the blocks of a prompt from block `begin` on."""
    ends = range(size, len(tokens) + 1, size)
    hashes = [EngineHash(hash(tuple(tokens[:end])) & 2**62 - 1) for end in ends]
    parent = hashes[begin - 1] if begin else None
    return BlockStored(tuple(hashes[begin:]), parent, array("I", tokens[begin * size :]), size)


def tell(fleet: Fleet, name: str, *events: Event, rank: int = 0) -> None:
    endpoint = fleet.get(name)
    assert endpoint is not None
    endpoint.ranks[rank].apply(index_core().decode_batch(payload(events)), live=True)


def prompt(tokens: list[int]) -> Prefix:
    return Prefix(array("I", [*tokens, 5]))


def match(fleet: Fleet, tokens: list[int], name: str = "a", *, now: float = 1.0) -> PrefixMatch:
    found = {each.name: each.prefix for each in fleet.candidates(prompt(tokens), now=now)}[name]
    assert found is not None
    return found


def blocks(fleet: Fleet, tokens: list[int], name: str = "a", *, now: float = 1.0) -> tuple[int, int]:
    """Return the blocks in the fastest tier, and how many of them are predicted."""
    found = match(fleet, tokens, name, now=now)
    return found.held.tier_blocks[0], found.predicted_blocks


def send(fleet: Fleet, tokens: list[int], name: str = "a") -> Prediction | None:
    (picked,) = (each for each in fleet.candidates(prompt(tokens), now=0.0) if each.name == name)
    return fleet.routed(picked, prompt(tokens), now=0.0)


def test_prompt_just_sent_counts_as_held_where_it_went(fleet: Fleet) -> None:
    send(fleet, SENT)

    assert (blocks(fleet, SENT), blocks(fleet, SENT, "b")) == ((10, 10), (0, 0))
    assert blocks(fleet, OTHER) == (3, 3)
    assert match(fleet, SENT).usable_tokens == 10 * BLOCK
    assert fleet.atlas.match(prompt(SENT))["a"].held.tier_blocks[0] == 0, "the index has what events told"


def test_part_that_is_not_there_yet_is_predicted(fleet: Fleet) -> None:
    tell(fleet, "a", stored(SENT[: 4 * BLOCK]))

    send(fleet, SENT)

    assert blocks(fleet, SENT) == (10, 6)
    assert blocks(fleet, OTHER) == (3, 0)


def test_events_replace_what_was_predicted(fleet: Fleet) -> None:
    send(fleet, SENT)
    tell(fleet, "a", stored(SENT[: 9 * BLOCK]))
    assert blocks(fleet, SENT) == (10, 1), "the last block is still to come"

    tell(fleet, "a", stored(SENT, begin=9))
    assert blocks(fleet, SENT) == (10, 0)
    tell(fleet, "a", BlockRemoved(stored(SENT).hashes, stored(SENT).medium))
    assert blocks(fleet, SENT) == (0, 0), "what the engine gave up again is not predicted any more"


Ending = Callable[[Fleet, Prediction], None]


def failed(fleet: Fleet, entry: Prediction) -> None:
    fleet.predictions.withdraw(entry)


def new_life(fleet: Fleet, _: Prediction) -> None:
    endpoint = fleet.get("a")
    assert endpoint is not None
    endpoint.ranks[0].reset("test")


def housekeeping(fleet: Fleet, entry: Prediction) -> None:
    entry.begun()
    fleet.tick(now=TTL_S)


def begun(_fleet: Fleet, entry: Prediction) -> None:
    entry.begun()


def nothing(_fleet: Fleet, _: Prediction) -> None:
    return


@pytest.mark.parametrize(
    ("end", "now"),
    [
        pytest.param(failed, 1.0, id="failed"),
        pytest.param(new_life, 1.0, id="new_life"),
        pytest.param(housekeeping, 1.0, id="expired_in_housekeeping"),
        pytest.param(begun, TTL_S, id="expired"),
        pytest.param(nothing, MAX_WAIT_S + TTL_S, id="never_begun"),
    ],
)
def test_prediction_ends(fleet: Fleet, end: Ending, now: float) -> None:
    entry = send(fleet, SENT)
    assert entry is not None

    end(fleet, entry)
    tell(fleet, "a", stored([99] * BLOCK))

    assert blocks(fleet, SENT, now=now) == (0, 0)


def test_prediction_counts_while_the_request_waits_in_the_engine(fleet: Fleet) -> None:
    entry = send(fleet, SENT)
    assert entry is not None
    assert blocks(fleet, SENT, now=300.0) == (10, 10)  # an overloaded engine lets requests wait for minutes

    entry.begun()

    assert blocks(fleet, SENT, now=300.0 + TTL_S) == (0, 0)


async def test_endpoint_added_again_starts_without_predictions(fleet: Fleet) -> None:
    send(fleet, SENT)
    await fleet.remove("a")
    fleet.add("a", addresses(1, events="tcp://127.0.0.1:1"), {})
    tell(fleet, "a", stored([99] * BLOCK))

    assert blocks(fleet, SENT) == (0, 0)


def test_nothing_is_predicted_of_a_prompt_that_is_there(fleet: Fleet) -> None:
    tell(fleet, "a", stored(SENT))

    assert send(fleet, SENT) is None


def test_nothing_is_predicted_of_a_prompt_that_has_no_full_block(fleet: Fleet) -> None:
    assert send(fleet, [1]) is None


def test_nothing_is_predicted_without_block_keys(fleet: Fleet) -> None:
    (picked, _) = fleet.candidates(None, now=0.0)

    assert fleet.routed(picked, None, now=0.0) is None


def test_endpoint_without_events_knows_from_routing_and_predicts_nothing(fleet: Fleet) -> None:
    fleet.add("c", addresses(3, events=None), {})
    fleet.atlas.ledger("c", 0).use_block_size(BLOCK)

    assert send(fleet, SENT, "c") is None
    assert blocks(fleet, SENT, "c") == (10, 0)


async def test_nothing_is_predicted_while_that_is_switched_off() -> None:
    async with make_fleet() as fleet:
        fleet.configure(fleet_settings(make_config(predictions={"enabled": False})))
        fleet.add("a", addresses(1, events="tcp://127.0.0.1:1"), {})
        tell(fleet, "a", stored([99] * BLOCK))
        before = send(fleet, SENT)
        other = fleet.predictions.foreign(
            "a", array("Q", [1]), block_size=BLOCK, lookahead=0, now=0.0, ttl_s=9.0, wait_s=9.0
        )
        assert other is None

        fleet.configure(fleet_settings(PREDICTING))
        after = send(fleet, SENT)

        assert before is None
        assert after is not None
        assert after.expires_at == TTL_S
        assert blocks(fleet, SENT) == (10, 10)


def metrics(fleet: Fleet) -> dict[tuple[str, ...], float]:
    """Return the value of a series by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in fleet.predictions.families()
        for sample in family.samples
    }


def add_without_events_yet(fleet: Fleet, facts: EngineFacts, *, n_ranks: int = 1) -> None:
    """Add an endpoint `new` that was only scraped."""
    ranks = tuple(RankAddresses(rank, "tcp://127.0.0.1:1", None) for rank in range(n_ranks))
    fleet.add("new", EndpointAddresses(HostPort("10.0.0.9", 8000), None, ranks), {})
    fleet.facts_changed("new", facts)


@pytest.mark.parametrize("n_ranks", [1, 2])
async def test_prompt_is_predicted_before_the_first_event_when_metrics_tell_the_block_size(
    fleet: Fleet, n_ranks: int
) -> None:
    add_without_events_yet(fleet, EngineFacts(n_engines=n_ranks, block_size=BLOCK), n_ranks=n_ranks)

    send(fleet, SENT, "new")
    assert blocks(fleet, OTHER, "new") == (3, 3)

    tell(fleet, "new", stored(SENT[: 4 * BLOCK]), rank=n_ranks - 1)
    assert blocks(fleet, SENT, "new") == (10, 6), "an event of the told size goes on with it"
    assert metrics(fleet)["kvatlas_predictions_total", "forgotten"] == 0


async def test_prediction_is_forgotten_when_events_show_another_block_size(fleet: Fleet) -> None:
    add_without_events_yet(fleet, EngineFacts(n_engines=1, block_size=2 * BLOCK))
    send(fleet, SENT, "new")
    assert (blocks(fleet, SENT, "new"), match(fleet, SENT, "new").block_size) == ((5, 5), 2 * BLOCK)
    send(fleet, SENT)

    tell(fleet, "new", stored([99] * BLOCK))

    assert (blocks(fleet, SENT, "new"), match(fleet, SENT, "new").block_size) == ((0, 0), BLOCK)
    assert blocks(fleet, SENT) == (10, 10), "that of another endpoint goes on"
    assert metrics(fleet)["kvatlas_predictions_total", "forgotten"] == 1
    send(fleet, SENT, "new")
    tell(fleet, "new", stored([98] * BLOCK))
    assert blocks(fleet, SENT, "new") == (10, 10)


async def test_nothing_is_predicted_before_the_first_event_when_metrics_tell_no_block_size(
    fleet: Fleet,
) -> None:
    add_without_events_yet(fleet, EngineFacts(n_engines=1))

    assert send(fleet, SENT, "new") is None


async def test_prompt_is_predicted_right_after_a_restart_by_the_block_size_told_last(fleet: Fleet) -> None:
    add_without_events_yet(fleet, EngineFacts(n_engines=1, block_size=2 * BLOCK, process_start_s=1.0))
    tell(fleet, "new", stored(SENT, size=2 * BLOCK))

    fleet.facts_changed("new", EngineFacts(n_engines=1, block_size=BLOCK, process_start_s=2.0))
    send(fleet, SENT, "new")

    assert blocks(fleet, SENT, "new") == (10, 10)


def test_metrics_tell_what_became_of_predictions(fleet: Fleet) -> None:
    send(fleet, SENT)
    send(fleet, SENT, "b")
    tell(fleet, "b", stored(SENT))

    samples = metrics(fleet)
    assert samples["kvatlas_predictions_total", "confirmed"] == 1
    assert samples["kvatlas_predictions_total", "withdrawn"] == 0
    assert samples["kvatlas_predictions_open",] == 1
    assert samples["kvatlas_predicted_keys",] == 10


def ends_with_block(fleet: Fleet, tokens: list[int]) -> int:
    """Send a prompt that ends with its last block twice at once; return the blocks expected to be reused the second time."""
    prefix = Prefix(array("I", tokens))

    def pick() -> Candidate:
        return next(each for each in fleet.candidates(prefix, now=0.0) if each.name == "a")

    fleet.routed(pick(), prefix, now=0.0)
    found = pick().prefix
    assert found is not None
    return found.usable_blocks


def test_last_block_of_a_predicted_prompt_is_reused_from_a_tier_that_gets_copies(fleet: Fleet) -> None:
    """As in vLLM with an OffloadingConnector: the GPU computes the last block again, the CPU tier has it."""
    assert ends_with_block(fleet, [5] * 4 * BLOCK) == 3
    tell(fleet, "b", replace(stored([98] * BLOCK), medium=MediumName("STORAGE")))  # shared by all
    assert ends_with_block(fleet, [6] * 4 * BLOCK) == 3
    tell(fleet, "a", replace(stored([99] * BLOCK), medium=MediumName("CPU")))
    assert ends_with_block(fleet, [7] * 4 * BLOCK) == 4
    assert match(fleet, [7] * 4 * BLOCK).usable_blocks == 4, "of a longer prompt all blocks are the GPU's"


def test_drafter_computes_the_last_predicted_block_again(fleet: Fleet) -> None:
    endpoint = fleet.get("a")
    assert endpoint is not None
    endpoint.relabel({LABEL: "true"})
    send(fleet, SENT)
    assert match(fleet, SENT).usable_blocks == 9
    tell(fleet, "a", stored(SENT))
    assert match(fleet, SENT).usable_blocks == 9
    assert ends_with_block(fleet, [7] * 4 * BLOCK) == 2
