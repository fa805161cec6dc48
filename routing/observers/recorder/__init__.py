"""Traces of routed requests, without anything of which requests could be told again."""
