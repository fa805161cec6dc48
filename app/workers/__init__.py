"""One kvatlas as several processes, for gateways that one core cannot serve."""
