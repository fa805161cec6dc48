"""Filters that see every request first, whatever profile runs."""
