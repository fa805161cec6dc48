"""Deciders: whether a stage of a request is done by an endpoint of its own."""
