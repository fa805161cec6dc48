// A msgpack reader, one item at a time and without copies; it never reads outside the given bytes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvatlas::msgpack {

enum class Kind : uint8_t { kNil, kBool, kUnsigned, kNegative, kFloat, kText, kBytes, kArray, kMap, kExtension, kBroken };

// `value`: the number (negative ones modulo 2**64, floats as the bits of a double), or the number of items of an array or
// map. `data`: the content of text, bytes and extensions.
struct Item {
    Kind kind;
    uint64_t value = 0;
    std::string_view data = {};
};

// A text of up to 31 bytes as msgpack encodes it, to be compared without a call.
struct ShortText {
    constexpr ShortText(std::string_view text) : n_bytes(text.size() + 1) {
        std::array<uint8_t, 32> bytes{}, known{};
        bytes[0] = static_cast<uint8_t>(0xa0 + text.size());
        for (size_t i = 0; i < text.size(); ++i) bytes[i + 1] = static_cast<uint8_t>(text[i]);
        for (size_t i = 0; i < n_bytes; ++i) known[i] = 0xff;
        words = std::bit_cast<std::array<uint64_t, 4>>(bytes);
        masks = std::bit_cast<std::array<uint64_t, 4>>(known);
    }
    size_t n_bytes;
    std::array<uint64_t, 4> words, masks;
};

class Reader {
public:
    explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

    const char* at() const { return at_; }
    bool is_at_end() const { return at_ == end_; }
    void go_to(const char* position) { at_ = position; }

    // Skips `text` if it comes next; otherwise reads nothing and returns false. May return false at the end of the bytes.
    bool take(const ShortText& text) {
        if (n_left() < sizeof text.words) return false;
        uint64_t words[4], differences = 0;
        std::memcpy(words, at_, sizeof words);
        for (size_t i = 0; i < 4; ++i) differences |= (words[i] ^ text.words[i]) & text.masks[i];
        if (differences != 0) return false;
        at_ += text.n_bytes;
        return true;
    }

    // Skips a nil if it comes next.
    bool take_nil() {
        if (at_ == end_ || static_cast<uint8_t>(*at_) != 0xc0) return false;
        ++at_;
        return true;
    }

    // Reads `n` hashes sent as numbers of 8 bytes; returns how many, before the first in another form.
    size_t read_longs(uint64_t* out, size_t n) {
        constexpr size_t kSize = 1 + sizeof(uint64_t);
        size_t i = 0;
        for (; i < n && n_left() >= kSize && static_cast<uint8_t>(*at_) == 0xcf; ++i, at_ += kSize) {
            out[i] = load(at_ + 1);
        }
        return i;
    }

    // Reads the next item; of an array or a map only its head. Returns kBroken if the bytes end within the item.
    Item next() {
        if (at_ == end_) return {Kind::kBroken};
        const auto lead = static_cast<uint8_t>(*at_++);
        if (lead < 0x80) return {Kind::kUnsigned, lead};
        if (lead < 0x90) return head(Kind::kMap, lead & 0x0f);
        if (lead < 0xa0) return head(Kind::kArray, lead & 0x0f);
        if (lead < 0xc0) return span(Kind::kText, lead & 0x1f);
        if (lead >= 0xe0) return {Kind::kNegative, static_cast<uint64_t>(static_cast<int8_t>(lead))};
        switch (lead) {
            case 0xc0: return {Kind::kNil};
            case 0xc2: case 0xc3: return {Kind::kBool, lead & 1u};
            case 0xc4: case 0xc5: case 0xc6: return sized(Kind::kBytes, lead - 0xc4);
            case 0xc7: case 0xc8: case 0xc9: return sized(Kind::kExtension, lead - 0xc7, 1);
            case 0xca: return floating(4);
            case 0xcb: return floating(8);
            case 0xcc: case 0xcd: case 0xce: case 0xcf: return number(Kind::kUnsigned, lead - 0xcc);
            case 0xd0: case 0xd1: case 0xd2: case 0xd3: return integer(lead - 0xd0);
            case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return span(Kind::kExtension, 1 + (size_t{1} << (lead - 0xd4)));
            case 0xd9: case 0xda: case 0xdb: return sized(Kind::kText, lead - 0xd9);
            case 0xdc: case 0xdd: return counted(Kind::kArray, lead - 0xdc + 1);
            case 0xde: case 0xdf: return counted(Kind::kMap, lead - 0xde + 1);
            default: return {Kind::kBroken};
        }
    }

    // Reads `n` numbers of 0 .. 2**32 - 1; returns false at the first item of another kind or in an unusual encoding.
    // Like `next` without branches: token ids of 1, 3 and 5 bytes in random order would cost a misprediction each. Where an item
    // begins is known only once the one before it is read, so one load serves for the lengths of two.
    bool read_words(uint32_t* out, size_t n) {
        for (; n > 1 && n_left() >= 2 * sizeof(uint64_t); n -= 2, out += 2) {
            const uint64_t bytes = load(at_), lead = bytes >> 56;
            if (!is_word(lead)) return false;
            const uint64_t length = length_of(lead), next_lead = bytes << 8 * length >> 56;
            if (!is_word(next_lead)) return false;
            const uint64_t next_length = length_of(next_lead);
            out[0] = word(bytes, length);
            out[1] = word(load(at_ + length), next_length);
            at_ += length + next_length;
        }
        for (; n > 0; --n, ++out) {
            const Item item = next();
            if (item.kind != Kind::kUnsigned || item.value > 0xffffffff) return false;
            *out = static_cast<uint32_t>(item.value);
        }
        return true;
    }

    // Skips one item with its content; returns false if the bytes end before.
    bool skip() {
        for (uint64_t n_left = 1; n_left > 0; --n_left) {
            const Item item = next();
            if (item.kind == Kind::kBroken) return false;
            // an item has at least one byte, and `head` has checked that this many can follow
            if (item.kind == Kind::kArray) n_left += item.value;
            if (item.kind == Kind::kMap) n_left += 2 * item.value;
        }
        return true;
    }

private:
    // Of a number up to 2**32 - 1, whose lead byte is below 0x80 or one of 0xcc, 0xcd and 0xce.
    static bool is_word(uint64_t lead) { return lead < 0x80 || lead - 0xcc < 3; }
    static uint64_t length_of(uint64_t lead) { return 1 + (lead >> 7 << (lead & 3)); }
    static uint32_t word(uint64_t bytes, uint64_t length) {
        return static_cast<uint32_t>(length == 1 ? bytes >> 56 : bytes << 8 >> (72 - 8 * length));
    }

    static uint64_t load(const char* at) {
        uint64_t bytes;
        std::memcpy(&bytes, at, sizeof bytes);
        return from_big_endian(bytes);
    }

    static uint64_t from_big_endian(uint64_t bytes) {
        return std::endian::native == std::endian::big ? bytes : __builtin_bswap64(bytes);
    }

    size_t n_left() const { return static_cast<size_t>(end_ - at_); }

    // Reads a big-endian number of 2**log_size bytes; returns false if the bytes end before.
    bool read(unsigned log_size, uint64_t& value) {
        const size_t n_bytes = size_t{1} << log_size;
        if (n_left() < n_bytes) return false;
        value = 0;
        for (size_t i = 0; i < n_bytes; ++i) value = value << 8 | static_cast<uint8_t>(at_[i]);
        at_ += n_bytes;
        return true;
    }

    Item number(Kind kind, unsigned log_size) {
        uint64_t value;
        return read(log_size, value) ? Item{kind, value} : Item{Kind::kBroken};
    }

    Item integer(unsigned log_size) {
        uint64_t value;
        if (!read(log_size, value)) return {Kind::kBroken};
        const unsigned unused = 64 - (8u << log_size);
        const int64_t with_sign = static_cast<int64_t>(value << unused) >> unused;
        return {with_sign < 0 ? Kind::kNegative : Kind::kUnsigned, static_cast<uint64_t>(with_sign)};
    }

    Item floating(size_t n_bytes) {
        uint64_t bits;
        if (!read(n_bytes == 4 ? 2 : 3, bits)) return {Kind::kBroken};
        if (n_bytes == 4) bits = std::bit_cast<uint64_t>(static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
        return {Kind::kFloat, bits};
    }

    Item head(Kind kind, uint64_t n_items) {
        return n_items <= n_left() ? Item{kind, n_items} : Item{Kind::kBroken};
    }

    Item counted(Kind kind, unsigned log_size) {
        uint64_t n_items;
        return read(log_size, n_items) ? head(kind, n_items) : Item{Kind::kBroken};
    }

    Item span(Kind kind, uint64_t n_bytes) {
        if (n_bytes > n_left()) return {Kind::kBroken};
        const std::string_view data(at_, n_bytes);
        at_ += n_bytes;
        return {kind, 0, data};
    }

    Item sized(Kind kind, unsigned log_size, uint64_t n_more = 0) {
        uint64_t n_bytes;
        return read(log_size, n_bytes) ? span(kind, n_bytes + n_more) : Item{Kind::kBroken};
    }

    const char* at_;
    const char* end_;
};

}  // namespace kvatlas::msgpack
