"""Encoding of text to token ids."""
