"""gRPC services beside ext-proc: scores without routing."""
