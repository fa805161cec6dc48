# The decoder in C++, events/native. Use it through `native_batch`. It releases the GIL while it decodes.

class Batch:
    def size(self) -> int: ...
    def event_bytes(self, position: int) -> bytes: ...
    def adapters(self) -> list[str]: ...  # each name once
    def removed_media(
        self,
    ) -> list[str]: ...  # each medium once, as sent; "" stands for events without a medium

# (batch, timestamp, rank, positions of the events that the C++ decoder leaves to `wire`, number of events of unknown kinds,
# which are left out, memory of the batch in bytes); None if `wire` has to decode the whole payload.
def decode_batch(payload: bytes) -> tuple[Batch, float, int | None, list[int], int, int] | None: ...
