"""One request to one endpoint, and why."""
