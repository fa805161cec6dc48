"""How policies bear load: what each sustains, and its figures over the load, on every workload."""
