// A msgpack reader, one item at a time and without copies; it never reads outside the given bytes.
#pragma once

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

class Reader {
public:
    explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

    const char* at() const { return at_; }
    bool is_at_end() const { return at_ == end_; }
    void go_to(const char* position) { at_ = position; }

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
    // Like `next` without branches: token ids of 1, 3 and 5 bytes in random order would cost a misprediction each.
    bool read_words(uint32_t* out, size_t n) {
        for (; n > 0 && n_left() >= sizeof(uint64_t); --n, ++out) {
            const auto lead = static_cast<uint8_t>(*at_);
            const Word form = lead < 0x80 ? Word{1, 0, 56} : kWords[lead & 0x03];
            if (lead > 0x7f && (lead < 0xcc || lead > 0xce)) return false;
            uint64_t bytes;
            std::memcpy(&bytes, at_, sizeof bytes);
            *out = static_cast<uint32_t>(from_big_endian(bytes) << form.skipped >> form.dropped);
            at_ += form.n_bytes;
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
    // The position of a number in the 8 bytes that start with its lead byte.
    struct Word {
        uint8_t n_bytes, skipped, dropped;
    };
    static constexpr Word kWords[4] = {{2, 8, 56}, {3, 8, 48}, {5, 8, 32}, {0, 0, 0}};  // 0xcc, 0xcd, 0xce

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
