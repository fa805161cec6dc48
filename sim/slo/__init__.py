"""How many requests meet their objectives, by policy."""
