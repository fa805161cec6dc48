"""Machinery of scoring: contracts, profiles, decisions."""
