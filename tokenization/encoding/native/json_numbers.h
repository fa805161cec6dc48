// Lists of integers cut out of a JSON object without a Python object for each.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace kvatlas::tokenization {

// A member that may hold a list of integers: 4 bytes each, 0 .. 2**32 - 1, or 8 bytes, -2**63 .. 2**64 - 1 as modulo 2**64.
struct NumberField {
    std::string_view name;
    bool is_wide;
};

// Cuts the lists of a JSON object's own members. It gives up, so that a decoder judges the whole text, at anything that is not
// plainly right: an empty list, a number out of range or with a fraction, a repeated member, an escape in a name. Other values
// are skipped and not checked; the decoder of `rest` does that.
class NumberCutter {
public:
    NumberCutter(std::string_view json, const std::vector<NumberField>& fields)
        : numbers(fields.size()), is_cut(fields.size()), fields_(fields), seen_(fields.size()),
          begin_(json.data()), at_(begin_), end_(at_ + json.size()), kept_(at_) {}

    // Returns whether a list was cut and nothing made it give up. Then `numbers` has little-endian numbers of every field with
    // `is_cut`, and `rest` the text with `[]` in their places. Cost: 0.7 ns per byte of lists.
    bool run() {
        if (!skip('{')) return false;
        bool is_any = false;
        do {
            std::string_view name;
            if (!read_name(name) || !skip(':')) return false;
            space();
            const size_t field = field_of(name);
            const bool is_known = field < fields_.size();
            if (is_known && seen_[field]) return false;
            if (is_known) seen_[field] = true;
            if (is_known && at_ < end_ && *at_ == '[') {
                keep_until(at_);
                if (!(fields_[field].is_wide ? read_list<uint64_t>(field) : read_list<uint32_t>(field))) return false;
                rest += "[]";
                kept_ = at_;
                is_cut[field] = is_any = true;
            } else if (!skip_value()) {
                return false;
            }
        } while (skip(','));
        keep_until(end_);
        return is_any;
    }

    std::string rest;
    std::vector<std::string> numbers;
    std::vector<bool> is_cut;

private:
    static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
    static bool is_digit(char c) { return c >= '0' && c <= '9'; }

    void space() {
        while (at_ < end_ && is_space(*at_)) ++at_;
    }

    bool skip(char wanted) {
        space();
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }

    void keep_until(const char* position) { rest.append(kept_, position); }

    bool read_name(std::string_view& name) {
        if (!skip('"')) return false;
        const char* begin = at_;
        while (at_ < end_ && *at_ != '"' && *at_ != '\\') ++at_;
        if (at_ == end_ || *at_ == '\\') return false;
        name = {begin, static_cast<size_t>(at_++ - begin)};
        return true;
    }

    size_t field_of(std::string_view name) const {
        size_t field = 0;
        while (field < fields_.size() && fields_[field].name != name) ++field;
        return field;
    }

    bool skip_value() {
        size_t depth = 0;
        for (; at_ < end_; ++at_) {
            switch (*at_) {
                case '"':
                    for (++at_; at_ < end_ && *at_ != '"'; ++at_) {
                        if (*at_ == '\\' && ++at_ == end_) return false;
                    }
                    if (at_ == end_) return false;
                    break;
                case '[':
                case '{': ++depth; break;
                case ']':
                case '}':
                    if (depth == 0) return true;
                    --depth;
                    break;
                case ',':
                    if (depth == 0) return true;
                    break;
                default: break;
            }
        }
        return true;
    }

    template <class Number>
    bool read_list(size_t field) {
        ++at_;
        std::string& found = numbers[field];
        found.reserve(static_cast<size_t>(end_ - at_) / kUsualBytes * sizeof(Number) + kPart * sizeof(Number));
        while (true) {
            read_plain_numbers<Number>(found);
            space();
            Number number;
            if (!read_number(number)) return false;
            found.append(reinterpret_cast<const char*>(&number), sizeof number);
            if (at_ < end_ && is_space(*at_)) space();
            if (at_ == end_) return false;
            const char next = *at_++;
            if (next == ']') return true;
            if (next != ',') return false;
        }
    }

    // Reads numbers with the comma behind each, and white space before them, up to the first thing that is none of these. The
    // commas of 64 bytes are found in one step, so that no number waits for the length of the one before.
    template <class Number>
    void read_plain_numbers(std::string& found) {
        if constexpr (std::endian::native == std::endian::little) {
            if (at_ - begin_ < 8) return;  // digits are read together with bytes before them
            const char* at = at_;
            bool is_plain = true;
            for (const char* part = at; is_plain && end_ - part >= kPart; part += kPart) {
                std::array<Number, kPart / 2> numbers;
                size_t n_numbers = 0;
                for (uint64_t others = non_digits(part); others != 0; others &= others - 1) {
                    const char* other = part + std::countr_zero(others);
                    const auto n = static_cast<uint64_t>(other - at);
                    uint64_t value = 0;
                    if (*other == ',' && plain_number(other, n, value) && value <= std::numeric_limits<Number>::max() && (*at != '0' || n == 1)) {
                        numbers[n_numbers++] = static_cast<Number>(value);
                    } else if (n != 0 || !is_space(*other)) {
                        is_plain = false;
                        break;
                    }
                    at = other + 1;
                    if (at - part < kPart && *at == ' ') {  // the usual white space, without a turn of its own
                        ++at;
                        others &= others - 1;
                    }
                }
                found.append(reinterpret_cast<const char*>(numbers.data()), n_numbers * sizeof(Number));
            }
            at_ = at;
        }
    }

    // Reads the number whose `n` digits end before `end`; the eight bytes before them can be read.
    static bool plain_number(const char* end, uint64_t n, uint64_t& value) {
        if (n - 1 < 8) {
            value = value_of(last_digits(end, n));
            return true;
        }
        if (n - 1 >= 16) return false;
        value = value_of(digits(end - 8)) + 100'000'000 * value_of(last_digits(end - 8, n - 8));
        return true;
    }

    // Returns a mask of the bytes that are no digits, of `kPart`.
    static uint64_t non_digits(const char* bytes) {
        uint64_t found = 0;
        for (int i = 0; i < kPart; i += 8) {
            found |= ((non_digits(digits(bytes + i)) >> 7) * 0x0102040810204080 >> 56) << i;
        }
        return found;
    }

    template <class Number>
    bool read_number(Number& number) {
        const bool is_negative = sizeof(Number) == 8 && at_ < end_ && *at_ == '-';
        at_ += is_negative;
        uint64_t value = 0;
        if (!read_digits(value)) return false;
        if (value > std::numeric_limits<Number>::max() || (is_negative && value > uint64_t{1} << 63)) return false;
        number = static_cast<Number>(is_negative ? 0 - value : value);
        return true;
    }

    // Reads up to seven digits in one step: nearly all token ids.
    bool read_digits(uint64_t& value) {
        if constexpr (std::endian::native == std::endian::little) {
            if (end_ - at_ >= 8) {
                const uint64_t bytes = digits(at_);
                const uint64_t others = non_digits(bytes);
                if (others != 0) {
                    const int n = std::countr_zero(others) / 8;
                    if (n == 0 || (n > 1 && (bytes & 0xFF) == 0)) return false;
                    value = value_of(bytes << (64 - 8 * n));
                    at_ += n;
                    return true;
                }
            }
        }
        const char* begin = at_;
        for (; at_ < end_ && is_digit(*at_); ++at_) {
            const auto digit = static_cast<uint64_t>(*at_ - '0');
            if (value > (~uint64_t{0} - digit) / 10) return false;
            value = value * 10 + digit;
        }
        return at_ > begin && (*begin != '0' || at_ == begin + 1);
    }

    // Eight bytes as a number, of which each digit is its value.
    static uint64_t digits(const char* bytes) {
        uint64_t found = 0;
        std::memcpy(&found, bytes, 8);
        return found ^ 0x3030303030303030;
    }

    // Returns the `n` digits before `end`, 1 <= n <= 8, after zeros.
    static uint64_t last_digits(const char* end, uint64_t n) { return digits(end - 8) & ~uint64_t{0} << (64 - 8 * n); }

    // Returns the highest bit of each byte that is no digit.
    static uint64_t non_digits(uint64_t digits) {
        return (((digits & 0x7F7F7F7F7F7F7F7F) + 0x7676767676767676) | digits) & 0x8080808080808080;
    }

    static uint64_t value_of(uint64_t digits) {
        digits = digits * 10 + (digits >> 8);
        return ((digits & 0x000000FF000000FF) * 0x000F424000000064 + ((digits >> 16) & 0x000000FF000000FF) * 0x0000271000000001) >> 32;
    }

    static constexpr size_t kUsualBytes = 5;
    static constexpr int kPart = 64;

    const std::vector<NumberField>& fields_;
    std::vector<bool> seen_;
    const char *begin_, *at_, *end_, *kept_;
};

}  // namespace kvatlas::tokenization
