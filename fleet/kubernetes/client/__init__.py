"""A client of the Kubernetes API server; knows nothing of kvatlas."""
