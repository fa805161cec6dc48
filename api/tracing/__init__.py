"""OpenTelemetry spans of routed requests, with the reference's names and attributes."""
