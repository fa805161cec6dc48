"""Tiers as prefix cache producers describe them: the tier of each producer, its source and its bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ...configs.approximate import ApproximateConfig
from ...configs.decisions import PredictionsConfig
from ...configs.schema import EventsConfig, KVAtlasConfig, TierConfig
from ...configs.units import Duration
from ...scorers.core.prefix_source import (
    ApproxProducer,
    BurstProducer,
    OneTier,
    PreciseProducer,
    PrefixProducer,
    PrefixSource,
    TierCredits,
)


@dataclass(frozen=True, slots=True)
class ProducedTiers:
    """Sources and tiers of all producers of a configuration.

    Attributes:
        sources: name of a producer -> source of its matches.
        tiers: the configured tiers, completed by the producers; explicit settings of the configuration win.
        events: the event plane, likewise.
        predictions: whether and how long routed blocks count as held, likewise.
        approximate: sizes of blocks and tiers that are known from routing alone, likewise.
    """

    sources: Mapping[str, PrefixSource]
    tiers: tuple[TierConfig, ...]
    events: EventsConfig
    predictions: PredictionsConfig
    approximate: ApproximateConfig


def produced_tiers(producers: Mapping[str, PrefixProducer], config: KVAtlasConfig) -> ProducedTiers:
    """Return tiers and sources as the producers of a configuration describe them.

    An approximate producer of the engine's own size stands for the fastest tier. Those of a given size follow in the
    order of the file, from the second tier on, or from the first if none has the engine's size. A precise producer
    stands for the union of all tiers, each with its credit.
    """
    approx = {name: each for name, each in producers.items() if isinstance(each, ApproxProducer)}
    precise = {name: each for name, each in producers.items() if isinstance(each, PreciseProducer)}
    places = _positions(approx)
    capacities = {
        place: capacity for name, place in places.items() if (capacity := approx[name].capacity) is not None
    }
    tiers = tuple(
        _tier(
            tier, place, capacities.get(place), is_approx=place in places.values(), is_precise=bool(precise)
        )
        for place, tier in enumerate(config.tiers)
    )
    names = [tier.name for tier in config.tiers]
    sources: dict[str, PrefixSource] = {
        name: OneTier(names[place] if place < len(names) else None) for name, place in places.items()
    }
    whole = config.scoring.whole_blocks
    sources |= {name: TierCredits(_credits(each, config.tiers), whole) for name, each in precise.items()}
    sources |= {name: each for name, each in producers.items() if isinstance(each, BurstProducer)}
    return ProducedTiers(
        sources,
        tiers,
        _events(config.events, precise.values()),
        _predictions(config.predictions, precise.values()),
        _approximate(config, approx),
    )


def _positions(approx: Mapping[str, ApproxProducer]) -> dict[str, int]:
    """Return producer name -> position of its tier."""
    next_place = int(any(each.capacity is None for each in approx.values()))
    places: dict[str, int] = {}
    for name, each in approx.items():
        if each.capacity is None:
            places[name] = 0
        else:
            places[name] = next_place
            next_place += 1
    return places


def _tier(
    tier: TierConfig, place: int, capacity: int | None, *, is_approx: bool, is_precise: bool
) -> TierConfig:
    changes: dict[str, object] = {}
    if capacity is not None and tier.lru_capacity_per_server == "auto":
        changes["lru_capacity_per_server"] = capacity
    if tier.source == "auto":
        if is_precise and not (is_approx and place):
            changes["source"] = "events"
        elif is_approx:
            # routed blocks are learned in the fastest tier, and assumed copied to the slower ones
            changes["source"] = "inferred" if place else "routing"
    return msgspec.structs.replace(tier, **changes)


def _approximate(config: KVAtlasConfig, approx: Mapping[str, ApproxProducer]) -> ApproximateConfig:
    """Return the sizes of the producer of the fastest tier, unless the configuration has its own."""
    found = config.approximate
    if not approx or found != ApproximateConfig():
        return found
    producer = min(approx.values(), key=lambda each: each.capacity is not None)  # the first of equal ones
    least = min(each.min_block_size for each in approx.values())
    has_ids = any(each.tokenizer or each.remote_tokenizer.url for each in config.served_models)
    return ApproximateConfig(
        auto_tune=producer.capacity is None,
        block_size_tokens=producer.block_size,
        # An estimate of four bytes a token is too coarse for smaller blocks; the reference has the same minimum.
        min_block_size_tokens=found.min_block_size_tokens if has_ids else least,
        lru_capacity_per_server=producer.default_capacity,
        max_prefix_tokens_to_match=producer.max_tokens,
        max_prefix_blocks_to_match=producer.max_blocks,
    )


def _credits(producer: PreciseProducer, tiers: Iterable[TierConfig]) -> tuple[float, ...]:
    """Return the credit of each tier: the largest of its media. A tier without credit is worth nothing."""
    return tuple(
        max(
            (
                credit
                for word, credit in producer.credits.items()
                if word == tier.name.lower() or word.upper() in {medium.upper() for medium in tier.media}
            ),
            default=0.0,
        )
        for tier in tiers
    )


def _events(events: EventsConfig, precise: Iterable[PreciseProducer]) -> EventsConfig:
    """Return the event plane of the first precise producer, unless the configuration has its own."""
    producer = next(iter(precise), None)
    if producer is None or events != EventsConfig():
        return events
    return EventsConfig(
        mode="connect" if producer.bind is None else "bind",
        bind=producer.bind or events.bind,
        port=producer.port or events.port,
        replay_port=producer.replay_port or events.replay_port,
        topic_prefix=producer.topic_prefix,
    )


def _predictions(predictions: PredictionsConfig, precise: Iterable[PreciseProducer]) -> PredictionsConfig:
    """Return the predictions of the first precise producer, unless the configuration has its own."""
    producer = next(iter(precise), None)
    if producer is None or predictions != PredictionsConfig():
        return predictions
    if producer.predicted_ttl is None:
        return PredictionsConfig(enabled=False)
    return PredictionsConfig(ttl=Duration.parse(producer.predicted_ttl))
