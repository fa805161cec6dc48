"""TLS of the process's listeners."""
