"""Traces of routed requests, without anything that would reveal their prompts."""
