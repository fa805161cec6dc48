"""Admitters: refuse requests before the filters see them."""
