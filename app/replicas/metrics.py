"""Metrics of replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ...fleet.families import counter, gauge
from ...fleet.replicas.knowledge import Knowledge
from ...fleet.replicas.sibling import SiblingState
from .loop import ReplicaLoop


def replica_families(loop: ReplicaLoop | None, knowledge: Knowledge) -> Iterator[Metric]:
    """Yield what a replica knows of its siblings, and what it costs; without samples if there is none."""
    siblings = gauge("replica_siblings", "Other replicas, by state.", "state")
    oldest = gauge("replica_oldest_message_seconds", "Time since the last message of the sibling that is silent for longest among the live ones.")  # fmt: skip
    in_flight = gauge("replica_in_flight_requests", "Requests in flight of the siblings, as last received.")
    messages = counter("replica_messages", "Messages to and from siblings.", "direction")
    n_bytes = counter("replica_bytes", "Bytes of these messages.", "direction")
    refused = counter("replica_refused", "Messages and connections of others that were refused.", "reason")
    dropped = counter("replica_dropped", "Messages that were not sent.", "reason")
    resyncs = counter("replica_resyncs", "Times that all that a sibling owns was asked for.")
    silenced = counter("replica_silenced", "Siblings that fell silent.")
    heard = counter("replica_heard_picks", "Picks of siblings, as received.")
    concurrent = counter("replica_concurrent_picks", "Picks of siblings whose endpoint this replica had picked too, both before the other's message came.")  # fmt: skip
    connections = counter("replica_connections", "Connections to siblings, or to their server.")
    failures = counter("replica_connection_failures", "Connections to the server between the replicas that failed or broke.", "reason")  # fmt: skip
    if loop is not None:
        counters, traffic = loop.core.counters, loop.transport.traffic
        found = loop.core.siblings()
        states = Counter(each.state for each in found)
        for state in SiblingState:
            siblings.add_metric([state], states[state])
        live = (SiblingState.LIVE, SiblingState.BEHIND)
        oldest.add_metric([], max((each.age_s for each in found if each.state in live), default=0.0))
        owners = knowledge.bookings.channel.owners().values()
        in_flight.add_metric(
            [], sum(numbers[0] for entries in owners for numbers in entries.values() if numbers)
        )
        for direction, count, total in (
            ("sent", traffic.sent, traffic.sent_bytes),
            ("received", traffic.received, traffic.received_bytes),
        ):
            messages.add_metric([direction], count)
            n_bytes.add_metric([direction], total)
        unread = Counter({"payload": counters.malformed.total()})
        for reason, count in (counters.refused + traffic.refused + unread).items():
            refused.add_metric([reason], count)
        for reason, count in traffic.dropped.items():
            dropped.add_metric([reason], count)
        resyncs.add_metric([], counters.asked)
        silenced.add_metric([], counters.silenced)
        heard.add_metric([], knowledge.picks.n_heard)
        concurrent.add_metric([], knowledge.picks.n_concurrent)
        connections.add_metric([], traffic.connections)
        for reason, count in traffic.failures.items():
            failures.add_metric([reason], count)
    yield from (
        siblings,
        oldest,
        in_flight,
        messages,
        n_bytes,
        refused,
        dropped,
        resyncs,
        silenced,
        heard,
        concurrent,
        connections,
        failures,
    )
