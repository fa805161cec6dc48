"""Plugins around a decision: who a request is from, what its session is, and what is reported of its usage."""
