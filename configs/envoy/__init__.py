"""Envoy configurations, as package data."""
