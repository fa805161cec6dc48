"""Lines of the accounts of a cost model: one number per endpoint each."""

WORK, BOOKED, N_AHEAD, PROMPTS_AHEAD, SINCE, PROMPTS_HELD, BUSY_MS, BUSY_AT, LOG_PACE, N_PACE = range(10)
"""Lines of `accounts.Accounts.columns`."""

N_LINES = 10

TIMES = (SINCE, BUSY_AT)
"""Lines that are times in monotonic seconds; between processes they are ages."""

BUSY_S = 10.0
"""Time constant of the share of its time that an endpoint spends on prompts: about the length of a response."""
