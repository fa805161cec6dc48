"""Observers of routed requests: they change no decision."""
