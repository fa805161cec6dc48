"""Diagnosis of a deployment: what is wrong, its effect, and the line that fixes it."""
