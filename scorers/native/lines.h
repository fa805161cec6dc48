// Lines of numbers in few bytes; scorers/core/lines.py describes the form and reads it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvatlas::scorers {

class PackedLines {
public:
    explicit PackedLines(size_t n) : line_(n) {}

    const std::string& bytes() const { return bytes_; }

    // Adds a line of numbers of at least 0.
    template <class Column>
    void add_counts(const Column& column) {
        uint32_t highest = 0;
        for (size_t at = 0; at < line_.size(); ++at) highest = std::max(highest, line_[at] = count_of(column[at]));
        if (highest <= UINT8_MAX) {
            add<uint8_t>(0);
        } else if (highest <= UINT16_MAX) {
            add<uint16_t>(1);
        } else {
            add<uint32_t>(2);
        }
    }

    // Adds a line of numbers with 32 bits, each what `of` makes from an item of the column.
    template <class Column, class Of>
    void add_floats(const Column& column, Of of) {
        for (size_t at = 0; at < line_.size(); ++at) line_[at] = std::bit_cast<uint32_t>(static_cast<float>(of(column[at])));
        add<uint32_t>(3);
    }

private:
    enum class Form { kEqual, kDense, kSparse };

    // Writes an item; returns the place behind it.
    template <class T>
    static char* put(char* to, T value) {
        std::memcpy(to, &value, sizeof value);
        return to + sizeof value;
    }

    static uint32_t count_of(double number) {
        return number > 0.0 ? number < UINT32_MAX ? static_cast<uint32_t>(number) : UINT32_MAX : 0;  // NaN is 0
    }
    static uint32_t count_of(int32_t number) { return number > 0 ? static_cast<uint32_t>(number) : 0; }
    static uint32_t count_of(int8_t number) { return count_of(int32_t{number}); }

    // Returns the place of `size` more bytes.
    char* grown_by(size_t size) {
        const size_t before = bytes_.size();
        bytes_.resize(before + size);
        return bytes_.data() + before;
    }

    char* put_head(Form form, int type, size_t size) {
        char* at = grown_by(1 + size);
        *at = static_cast<char>(static_cast<int>(form) << 4 | type);
        return at + 1;
    }

    // Writes the line as items of type T in the shortest form.
    template <class T>
    void add(int type) {
        const size_t n = line_.size();
        size_t n_first = 0, n_zero = 0;
        for (const uint32_t value : line_) {
            n_first += value == line_.front();
            n_zero += value == 0;
        }
        if (n > 0 && n_first == n) {
            put(put_head(Form::kEqual, type, sizeof(T)), static_cast<T>(line_.front()));
            return;
        }
        const size_t row_size = n <= size_t{UINT16_MAX} + 1 ? sizeof(uint16_t) : sizeof(uint32_t);
        const size_t sparse_size = sizeof(uint32_t) + (n - n_zero) * (row_size + sizeof(T));
        if (sparse_size >= n * sizeof(T)) {
            char* to = put_head(Form::kDense, type, n * sizeof(T));
            for (size_t row = 0; row < n; ++row) put(to + row * sizeof(T), static_cast<T>(line_[row]));
            return;
        }
        char* to = put(put_head(Form::kSparse, type, sparse_size), static_cast<uint32_t>(n - n_zero));
        char* values = to + (n - n_zero) * row_size;
        for (uint32_t row = 0; row < n; ++row) {
            if (line_[row] == 0) continue;
            to = row_size == sizeof(uint16_t) ? put(to, static_cast<uint16_t>(row)) : put(to, row);
            values = put(values, static_cast<T>(line_[row]));
        }
    }

    std::vector<uint32_t> line_;
    std::string bytes_;
};

}  // namespace kvatlas::scorers
