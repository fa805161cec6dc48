"""What engines say: wire formats to events, the per-publisher stream state machine, the ZMQ subscriber."""
