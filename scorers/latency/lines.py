"""Lines of the tables of a cost model: one number per endpoint each."""

(
    WORK,
    BOOKED,
    N_AHEAD,
    TOKENS_AHEAD,
    SINCE,
    TOKENS_HELD,
    BUSY_MS,
    BUSY_AT,
    LOG_PACE,
    N_PACE,
    PACE_TARGETS,
    N_TARGETS,
    READY_AT,
    SENT_AT,
    RECEIVING_AT,
    RECEIVED_AT,
    PLACED,
    PLACED_AT,
    TOKENS_IN_USE,
    PLACED_NEW,
    OVERDUE,
) = range(21)
"""Lines of `accounts.Accounts.columns`."""

N_LINES = 21

TIMES = (SINCE, BUSY_AT, READY_AT, SENT_AT, RECEIVING_AT, RECEIVED_AT, PLACED_AT)
"""Lines that are times in monotonic seconds; between processes they are ages."""

OVERHEAD, QUEUE, PREFILL, ATTENTION, BATCH, MEMORY, ADAPTER = range(7)
"""Lines of `features.features`; those of tokens to load follow."""

N_FEATURES = 7

MILLION = 1e6
"""Pairs of a token and one before it are counted in millions."""

BUSY_S = 30.0
"""Time constant of the share of its time that an endpoint spends on prompts: a few responses. Over the length of one, chance decides how
many prompts came, and says little about how many will come."""

PLACED_S = 300.0
"""Time constant of the tokens placed on an endpoint: long beside a response, short beside the life of a server."""
