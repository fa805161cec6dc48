"""What to change: how large a CPU tier should be, and which weights fit a workload."""
