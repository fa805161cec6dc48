"""gRPC calls over libnghttp2: the transport of the hot path, several times cheaper than the one of `grpc.aio`."""
