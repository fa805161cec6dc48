"""Transfers of prompts from the endpoints that computed them, in lines of `Accounts`."""

from __future__ import annotations

from typing import NamedTuple

from .lines import READY_AT, RECEIVED_AT, RECEIVING_AT, SENT_AT
from .open_request import OpenRequest


class Delays(NamedTuple):
    """Seconds by which a transfer makes its two endpoints ready later for others, after the prompts there are computed."""

    sender_s: float = 0.0
    receiver_s: float = 0.0


def add_transfer(
    cells: memoryview[float], request: OpenRequest, receiver: int, *, transfer_s: float
) -> Delays:
    """Note that the blocks of the last planned prompt are sent once it is computed; return what `take_back_transfer` takes back.

    A sender sends one prompt after the other, as it computes them. A receiver has several senders: what one of them sends
    before the others begin waits for none.

    Args:
        cells: the lines by endpoint, changed in place.
        request: that was opened at the sender.
        receiver: row of the endpoint that receives.
        transfer_s: seconds of the transfer.
    """
    sender = request.row
    ready_at, sent_at = cells[READY_AT, sender], cells[SENT_AT, sender]
    start = max(ready_at, sent_at)
    done, receiver_s = start + transfer_s, transfer_s
    if start > cells[RECEIVED_AT, receiver]:
        cells[RECEIVING_AT, receiver], cells[RECEIVED_AT, receiver] = start, done
    elif done > cells[RECEIVING_AT, receiver]:  # at the same time as others, which share the network with it
        cells[RECEIVING_AT, receiver] = min(start, cells[RECEIVING_AT, receiver])
        cells[RECEIVED_AT, receiver] += transfer_s
        done = cells[RECEIVED_AT, receiver]
    else:
        receiver_s = 0.0
    cells[SENT_AT, sender] = done
    left_s = max(
        0.0, sent_at - (ready_at - request.busy_ms / 1000.0)
    )  # to send, when all before it is computed
    return Delays(max(0.0, done - ready_at - left_s), receiver_s)


def take_back_transfer(cells: memoryview[float], sender: int, receiver: int, delays: Delays) -> None:
    """Take back a transfer that does not come; never more than there is."""
    for row, end, begin, seconds in (
        (sender, SENT_AT, READY_AT, delays.sender_s),
        (receiver, RECEIVED_AT, RECEIVING_AT, delays.receiver_s),
    ):
        cells[end, row] = max(cells[begin, row], cells[end, row] - seconds)
