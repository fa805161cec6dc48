"""What is wrong with this deployment, what that does, and which line mends it."""
