"""The doors: ext-proc, gRPC, REST, dashboard."""
