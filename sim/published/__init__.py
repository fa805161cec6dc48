"""The published tiered-cache benchmark, replayed on simulated engines beside its published figures."""
