"""Reading load and cache size from the endpoints' `/metrics`."""
