"""The shells of replicas: transports between them, discovery of them, and the loop that drives the core."""
