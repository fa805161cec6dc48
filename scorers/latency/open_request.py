"""A request that an endpoint was sent, until its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..core.decision import Decision
from .held_prompts import HeldPrompt
from .means import Lesson


class OpenRequest(msgspec.Struct, gc=False):
    """One request under way.

    Attributes:
        decision: that routed it; kept so that no other decision gets its id.
        row: its endpoint's row, -1 if its pick was not seen, so that it belongs to no account.
        group: its endpoint's group.
        features: those of the time to first token, as they were at the pick.
        expected_ms: predicted time to first token.
        work: tokens to compute, those of attention included.
        tokens: the same as the fleet books them.
        n_held: tokens of its prompt whose blocks it holds on the GPU until its end, less those that others there held too when it was
            sent.
        place: its place among the requests there that hold blocks, see `Releases`; -1 if it has none.
        prompt: its blocks among those of all requests there, from `Accounts.open`.
        tpot_features: those of the time per output token.
        expected_tpot_ms: predicted time per output token.
        n_output: tokens of its response, 0 until they are known.
        lessons: what the means learn from it once its endpoint has computed its prompt.
        busy_ms: time that its endpoint takes for its prompts.
        is_refused: whether its endpoint did not compute its prompt, so that its response had no first token.
        has_begun: whether its response has begun.
        is_booked: whether its `tokens` are booked, which they are until the first byte of its response.
        due_at: monotonic seconds at which its response is taken to begin, since its first byte does not show it; infinite if it does.
        computes: whether its endpoint computes the prompt; if not, it receives the blocks from another one.
        is_new: whether no endpoint had more of its prompt than another.
        is_foreseen: whether the expectation included all requests sent there before. It did not if a sibling picked the same
            endpoint at the same time; its time is then not learned from.
    """

    decision: Decision
    row: int
    group: str
    features: Sequence[float]
    expected_ms: float
    work: float
    tokens: float
    n_held: float
    place: int = -1
    prompt: HeldPrompt | None = None
    tpot_features: Sequence[float] = ()
    expected_tpot_ms: float = math.nan
    n_output: int = 0
    lessons: tuple[Lesson, ...] = ()
    busy_ms: float = 0.0
    is_refused: bool = False
    has_begun: bool = False
    is_booked: bool = True
    due_at: float = math.inf
    computes: bool = True
    is_new: bool = False
    is_foreseen: bool = True

    @property
    def ends_unseen(self) -> bool:
        """Whether its first byte was to come and has not."""
        return not self.has_begun and not self.is_refused and self.due_at == math.inf
