"""Machinery of scoring: plugin protocols, registry, profile, decision."""
