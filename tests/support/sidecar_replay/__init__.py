"""Replay of recordings of the reference sidecar against a sidecar."""
