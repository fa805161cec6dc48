"""Profile handlers: they run profiles, and compose a placement of their decisions."""
