"""Traces to replay: recorded ones and generated workloads."""
