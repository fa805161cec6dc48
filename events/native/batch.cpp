#include "batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "msgpack.h"

namespace kvatlas {

using msgpack::Item;
using msgpack::Kind;
using msgpack::Reader;

namespace {

constexpr uint64_t kCountEnd = uint64_t{1} << 31;
constexpr size_t kMaxNameLength = 256;
constexpr size_t kMinEventBytes = 8;  // engines send none smaller on average
constexpr size_t kMaxEvents = 131'072, kMaxEventBytes = size_t{768} << 10, kMaxHashes = 65'536;  // wire.py has the reasons
constexpr double kLeastMilliseconds = 1e11;  // wire.py, LEAST_MILLISECONDS
constexpr size_t kMaxLookahead = 64;  // wire.py, MAX_LOOKAHEAD
constexpr size_t kMaxFields = 64;     // fields.py, MAX_FIELDS
constexpr size_t kMaxExtraKeys = 65'536;  // extra_keys.py, MAX_EXTRA_KEYS
constexpr size_t kMaxArrays = 64;  // in an event of an unknown kind that is not decoded

enum Field : uint8_t { kHashes, kParent, kTokens, kBlockSize, kLoraId, kMedium, kLoraName, kExtraKeys, kGroup, kCacheKind, kWindow, kLookahead, kNoField };

constexpr std::array<std::string_view, kNoField> kNames = {
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "lookahead_token_ids"};
constexpr std::array<msgpack::ShortText, kNoField> kSentNames = {kNames[0], kNames[1], kNames[2], kNames[3], kNames[4], kNames[5],
                                                                kNames[6], kNames[7], kNames[8], kNames[9], kNames[10], kNames[11]};
constexpr msgpack::ShortText kSentType("type"), kSentStored("BlockStored"), kSentRemoved("BlockRemoved");
constexpr std::array<std::string_view, 2> kUnused = {"locality", "ownership"};
constexpr std::array<Field, 12> kStoredOrder = {kHashes, kParent, kTokens, kBlockSize, kLoraId, kMedium, kLoraName, kExtraKeys,
                                                kGroup, kCacheKind, kWindow, kLookahead};
constexpr size_t kSideBySide = 11;  // of them in arrays, where `kUnused` comes next
constexpr std::array<Field, 3> kRemovedOrder = {kHashes, kMedium, kGroup};

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool is_text(const Item& item, std::string_view text) { return item.kind == Kind::kText && item.data == text; }

EventKind kind_of(const Item& tag) {
    if (is_text(tag, "BlockStored")) return EventKind::kStored;
    return is_text(tag, "BlockRemoved") ? EventKind::kRemoved : EventKind::kOther;
}

}  // namespace

// Every function returns false for input that it leaves to events/wire.py.
class EventReader {
public:
    EventReader(Batch& batch, Reader& in) : batch_(batch), in_(in) {}

    // Returns false if the bytes end within the event.
    bool read() {
        const char* begin = in_.at();
        const size_t n_hashes = batch_.hashes_.size(), n_tokens = batch_.tokens_.size();
        event_ = {};
        if (!fields() || !extras() || static_cast<size_t>(in_.at() - begin) > kMaxEventBytes) {
            event_ = {};
            batch_.hashes_.resize(n_hashes);
            batch_.tokens_.resize(n_tokens);
            in_.go_to(begin);
            if (is_unknown() && static_cast<size_t>(in_.at() - begin) <= kMaxEventBytes) {
                ++batch_.n_unknown_;
                return true;
            }
            in_.go_to(begin);
            if (!in_.skip()) return false;
            ++batch_.n_others_;
        }
        event_.bytes = {begin, static_cast<size_t>(in_.at() - begin)};
        batch_.events_.push_back(event_);
        return true;
    }

private:
    bool fields() {
        seen_ = 0;
        extra_keys_ = nullptr;
        const Item head = in_.next();
        if (head.kind != Kind::kArray && head.kind != Kind::kMap) return false;
        if (head.value == 0 || head.value > kMaxFields) return false;
        if (head.kind == Kind::kMap && !in_.take(kSentType) && !is_text(in_.next(), "type")) return false;
        event_.kind = in_.take(kSentStored) ? EventKind::kStored : in_.take(kSentRemoved) ? EventKind::kRemoved : kind_of(in_.next());
        if (event_.kind == EventKind::kOther) return false;
        if (!(head.kind == Kind::kMap ? named(head.value - 1) : ordered(head.value - 1))) return false;
        return (seen_ & 1u << kHashes) != 0;
    }

    // Returns whether the next item is an event of an unknown kind, whose content events/wire.py would decode without
    // errors, and reads it.
    bool is_unknown() {
        const Item head = in_.next();
        const bool is_map = head.kind == Kind::kMap;
        if ((head.kind != Kind::kArray && !is_map) || head.value == 0 || head.value > kMaxFields) return false;
        if (is_map && !is_text(in_.next(), "type")) return false;
        const Item tag = in_.next();
        if (tag.kind != Kind::kText || !is_ascii(tag.data) || is_known(tag.data)) return false;
        for (uint64_t n_fields = head.value - 1; n_fields > 0; --n_fields) {
            if (is_map) {
                const Item name = in_.next();
                if (name.kind != Kind::kText || !is_ascii(name.data) || name.data == "type") return false;
            }
            if (!skip_plain()) return false;
        }
        return true;
    }

    static bool is_known(std::string_view tag) {
        return tag == "BlockStored" || tag == "BlockRemoved" || tag == "AllBlocksCleared";
    }

    // Skips a value of numbers, ASCII texts, bytes and a few arrays; returns false for any other.
    bool skip_plain() {
        uint64_t n_arrays = 0;
        for (uint64_t n_left = 1; n_left > 0; --n_left) {
            const Item item = in_.next();
            if (item.kind == Kind::kBroken || item.kind == Kind::kMap || item.kind == Kind::kExtension) return false;
            if (item.kind == Kind::kText && !is_ascii(item.data)) return false;
            if (item.kind == Kind::kArray && ++n_arrays > kMaxArrays) return false;
            if (item.kind == Kind::kArray) n_left += item.value;
        }
        return true;
    }

    // Skips a field that usually changes nothing; returns false if it says that the blocks are not in the server's own memory.
    bool unused(std::string_view name) {
        const Item item = in_.next();
        return item.kind == Kind::kNil || (name == "locality" && item.kind == Kind::kText && item.data == "LOCAL");
    }

    std::span<const Field> order() const {
        return event_.kind == EventKind::kStored ? std::span<const Field>(kStoredOrder) : std::span<const Field>(kRemovedOrder);
    }

    bool ordered(size_t n_fields) {
        const auto fields = order();
        if (n_fields > std::min(fields.size(), kSideBySide)) return false;
        return std::all_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(n_fields), [&](Field field) { return read(field); });
    }

    bool named(size_t n_fields) {
        const auto fields = order();
        size_t expected = 0;  // engines send the fields in this order
        for (; n_fields > 0; --n_fields) {
            if (expected < fields.size() && in_.take(kSentNames[fields[expected]])) {
                if (!read(fields[expected++])) return false;
                continue;
            }
            const Item name = in_.next();
            if (name.kind != Kind::kText) return false;
            if (name.data == "cache_salt" && event_.kind == EventKind::kStored) {
                if (event_.salt.data() != nullptr || !this->name(event_.salt)) return false;
                continue;
            }
            if (name.data == "session_id") {
                if (event_.session.data() != nullptr || !this->name(event_.session)) return false;
                continue;
            }
            if (std::ranges::find(kUnused, name.data) != kUnused.end()) {
                if (!unused(name.data)) return false;
                continue;
            }
            while (expected < fields.size() && kNames[fields[expected]] != name.data) ++expected;
            if (expected == fields.size() || !read(fields[expected++])) return false;
        }
        return true;
    }

    bool read(Field field) {
        seen_ |= 1u << field;
        switch (field) {
            case kHashes: return hashes();
            case kParent: return parent();
            case kTokens: return tokens();
            case kBlockSize: return count(event_.block_size);
            case kLoraId: return lora_id();
            case kMedium: return name(event_.medium);
            case kLoraName: return name(event_.lora);
            case kExtraKeys: extra_keys_ = in_.at(); return in_.skip();
            case kGroup: return count(event_.group);
            case kCacheKind: return name(event_.cache_kind);
            case kWindow: return count(event_.window);
            default: return lookahead();
        }
    }

    // Folds a hash to 64 bits: integers modulo 2**64, byte strings by their last 8 bytes.
    static bool as_hash(const Item& item, uint64_t& hash) {
        if (item.kind == Kind::kUnsigned || item.kind == Kind::kNegative) {
            hash = item.value;
            return true;
        }
        if (item.kind != Kind::kBytes || item.data.empty()) return false;
        hash = 0;
        for (const char byte : item.data.substr(item.data.size() - std::min<size_t>(item.data.size(), 8)))
            hash = hash << 8 | static_cast<uint8_t>(byte);
        return true;
    }

    bool hashes() {
        const Item head = in_.next();
        if (head.kind != Kind::kArray || head.value > kMaxHashes) return false;
        event_.hashes_at = batch_.hashes_.size();
        event_.n_hashes = head.value;
        batch_.hashes_.resize(event_.hashes_at + head.value);
        auto* out = batch_.hashes_.data() + event_.hashes_at;
        for (size_t i = in_.read_longs(out, head.value); i < head.value; ++i) {
            if (!as_hash(in_.next(), out[i])) return false;
        }
        return true;
    }

    bool parent() {
        const Item item = in_.next();
        if (item.kind == Kind::kNil) return true;
        // a hash-only publisher sends the integer 0 for "no parent"
        event_.has_parent = item.kind != Kind::kUnsigned || item.value != 0;
        return !event_.has_parent || as_hash(item, event_.parent);
    }

    bool tokens() {
        const Item head = in_.next();
        if (head.kind == Kind::kNil) return true;
        if (head.kind != Kind::kArray) return false;
        event_.tokens_at = batch_.tokens_.size();
        event_.n_tokens = head.value;
        batch_.tokens_.resize(event_.tokens_at + head.value);
        return in_.read_words(batch_.tokens_.data() + event_.tokens_at, head.value);
    }

    // Reads the tokens after each block, which must be the next block's own unless blocks are left out, and appends those after
    // the last one to `tokens`.
    bool lookahead() {
        const Item rows = in_.next();
        if (rows.kind == Kind::kNil) return true;
        if (rows.kind != Kind::kArray || rows.value == 0 || rows.value != event_.n_hashes) return false;
        const bool is_dense = event_.n_tokens == event_.n_hashes * uint64_t{event_.block_size};
        std::array<uint32_t, kMaxLookahead> after;
        size_t n_after = 0;
        for (size_t block = 1; block <= rows.value; ++block) {
            const Item row = in_.next();
            if (row.kind != Kind::kArray || row.value == 0 || row.value > std::min<size_t>(event_.block_size, kMaxLookahead)) return false;
            if (block != 1 && row.value != n_after) return false;
            n_after = row.value;
            if (!in_.read_words(after.data(), n_after)) return false;
            if (!is_dense || block == rows.value) continue;
            const uint32_t* next = batch_.tokens_.data() + event_.tokens_at + block * event_.block_size;
            if (!std::equal(next, next + n_after, after.begin())) return false;
        }
        batch_.tokens_.insert(batch_.tokens_.end(), after.data(), after.data() + n_after);
        event_.n_lookahead = static_cast<uint32_t>(n_after);
        return true;
    }

    bool count(uint32_t& out) {
        const Item item = in_.next();
        if (item.kind == Kind::kNil) return true;
        if (item.kind != Kind::kUnsigned || item.value >= kCountEnd) return false;
        out = static_cast<uint32_t>(item.value);
        return true;
    }

    bool lora_id() {
        const Item item = in_.next();
        has_lora_id_ = item.kind == Kind::kUnsigned;
        return has_lora_id_ || item.kind == Kind::kNil;
    }

    bool name(std::string_view& out) {
        if (in_.take_nil()) return true;
        const Item item = in_.next();
        if (item.kind != Kind::kText || item.data.size() > kMaxNameLength || !is_ascii(item.data)) return false;
        out = item.data;
        return true;
    }

    // Reads the inputs of the engine's hashes beside tokens: the adapter's name, and one more text in a prompt's first block.
    bool extras() {
        const bool sends_lora_id = (seen_ & 1u << kLoraId) != 0 && has_lora_id_;
        if (sends_lora_id && event_.lora.data() == nullptr) return false;
        if (extra_keys_ == nullptr) return true;
        Reader in({extra_keys_, static_cast<size_t>(in_.at() - extra_keys_)});
        const Item blocks = in.next();
        if (blocks.kind == Kind::kNil) return true;
        if (blocks.kind != Kind::kArray) return false;
        event_.has_extras = true;
        size_t n_keys = 0;
        for (size_t block = 0; block < blocks.value; ++block) {
            if (in.take_nil()) continue;
            const Item items = in.next();
            if (items.kind != Kind::kArray || (n_keys += items.value) > kMaxExtraKeys) return false;
            for (size_t i = 0; i < items.value; ++i) {
                if (!extra(in.next(), block)) return false;
            }
        }
        return true;
    }

    bool extra(const Item& item, size_t block) {
        if (item.kind != Kind::kText || !is_ascii(item.data)) return false;
        if (!event_.lora.empty() && item.data == event_.lora) return true;
        if (block != 0 || event_.has_parent || event_.salt.data() != nullptr) return false;
        event_.salt = item.data;
        return true;
    }

    Batch& batch_;
    Reader& in_;
    Event event_;
    uint32_t seen_ = 0;
    bool has_lora_id_ = false;
    const char* extra_keys_ = nullptr;
};

std::optional<Batch> Batch::decode(std::string_view payload) {
    std::optional<Batch> batch(std::in_place);
    if (!batch->read(payload)) batch.reset();
    return batch;
}

bool Batch::read(std::string_view payload) {
    rank_.reset();
    n_unknown_ = n_others_ = 0;
    events_.clear();
    hashes_.clear();
    tokens_.clear();
    Reader in(payload);
    const Item head = in.next();
    if (head.kind != Kind::kArray || head.value < 2 || head.value > 3) return false;
    const Item timestamp = in.next();
    switch (timestamp.kind) {
        case Kind::kFloat: timestamp_ = std::bit_cast<double>(timestamp.value); break;
        case Kind::kUnsigned: timestamp_ = static_cast<double>(timestamp.value); break;
        default: return false;
    }
    if (!std::isfinite(timestamp_)) timestamp_ = 0;
    if (timestamp_ >= kLeastMilliseconds) timestamp_ /= 1000;
    const Item events = in.next();
    if (events.kind != Kind::kArray || events.value > kMaxEvents) return false;
    events_.reserve(std::min(events.value, payload.size() / kMinEventBytes));
    EventReader reader(*this, in);
    for (size_t i = 0; i < events.value; ++i) {
        if (!reader.read()) return false;
    }
    if (head.value == 3) {
        const Item rank = in.next();
        if (rank.kind == Kind::kUnsigned && rank.value < kCountEnd) {
            rank_ = static_cast<uint32_t>(rank.value);
        } else if (rank.kind != Kind::kNil) {
            return false;
        }
    }
    return in.is_at_end();
}

}  // namespace kvatlas
