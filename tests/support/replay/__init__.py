"""Replay of recorded conversations with the reference picker against a running kvatlas."""
