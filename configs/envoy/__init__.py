"""Envoy configurations, as data."""
