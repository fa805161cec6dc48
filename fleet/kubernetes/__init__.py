"""Discovery of endpoints in a Kubernetes cluster, and leader election."""
