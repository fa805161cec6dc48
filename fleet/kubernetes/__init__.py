"""What the Kubernetes API server says: a copy of its objects kept, and endpoints made of them."""
