"""Offline replay: simulated engines on a virtual clock, routed by the code that routes in production."""
