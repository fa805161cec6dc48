"""Tuning for a workload: weights, credits, and the size of the CPU tier."""
