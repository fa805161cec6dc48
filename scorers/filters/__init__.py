"""Filters, which drop candidates before they are scored."""
