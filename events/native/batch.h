// A batch of engine events. Events in the forms that engines usually send are decoded; the others stay bytes, which
// events/wire.py decodes. events/wire.py is the specification of all forms.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvatlas {

enum class EventKind : uint8_t { kStored, kRemoved, kOther };

// Texts are ASCII and point into the payload; a text that was not sent has no data pointer.
struct Event {
    EventKind kind = EventKind::kOther;
    bool has_parent = false;
    bool has_extras = false;  // `extra_keys` were sent; they contain only the adapter's name and `salt`
    uint32_t block_size = 0, group = 0, window = 0;
    uint64_t parent = 0;
    size_t hashes_at = 0, n_hashes = 0, tokens_at = 0, n_tokens = 0;
    uint32_t n_lookahead = 0;  // tokens after each block that are part of its hash; those after the last one follow `tokens`
    std::string_view medium, lora, salt, cache_kind, session, bytes;
};

class Batch {
public:
    // Returns nullopt unless the payload has the form [timestamp, [event ...]] or [timestamp, [event ...], rank].
    static std::optional<Batch> decode(std::string_view payload);

    // The same into this batch, which keeps its memory; after false it is to be read anew.
    bool read(std::string_view payload);

    double timestamp() const { return timestamp_; }
    std::optional<uint32_t> rank() const { return rank_; }
    const std::vector<Event>& events() const { return events_; }
    size_t n_unknown() const { return n_unknown_; }  // events of kinds that nobody here knows; they are not in `events`
    bool is_usual() const { return n_others_ == 0 && n_unknown_ == 0; }  // every event is decoded
    size_t n_bytes() const { return events_.capacity() * sizeof(Event) + hashes_.capacity() * 8 + tokens_.capacity() * 4; }
    std::span<const uint64_t> hashes(const Event& event) const { return {hashes_.data() + event.hashes_at, event.n_hashes}; }
    // The tokens of the event's blocks, and those after the last one that are part of its hash.
    std::span<const uint32_t> tokens(const Event& event) const { return {tokens_.data() + event.tokens_at, event.n_tokens + event.n_lookahead}; }

private:
    friend class EventReader;

    double timestamp_ = 0;
    std::optional<uint32_t> rank_;
    size_t n_unknown_ = 0, n_others_ = 0;
    std::vector<Event> events_;
    std::vector<uint64_t> hashes_;
    std::vector<uint32_t> tokens_;
};

}  // namespace kvatlas
