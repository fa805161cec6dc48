"""Simulated engines and fleets, and the workloads that drive them."""
