"""Requests to replay: recorded traces and generated workloads."""
