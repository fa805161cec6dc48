"""A stand-in for the routing sidecar of engines, which behaves as recordings of the reference sidecar show."""
