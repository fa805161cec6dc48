"""Filters: what drops candidates before they are scored."""
