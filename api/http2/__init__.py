"""gRPC calls over libnghttp2: the transport of the hot path, several times cheaper than that of `grpc.aio`."""
