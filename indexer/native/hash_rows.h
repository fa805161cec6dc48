// Rows of engine hashes: 16 bytes each if their blocks follow one another, as the blocks of an event do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "recency.h"

namespace kvatlas {

// One row of the hash table (`Known` in indexer/hash_table.py). `key` is the engine hash; `parent` is valid if `depth` is not 0.
struct HashRow {
    uint64_t key, block_key, parent;
    uint32_t depth;
};

// Parents and depths are stored for the first of each run of rows alone: every other row of a run has the row before it as
// parent, which stays readable after it was removed, until the chunk is returned.
template <>
class RowStore<HashRow> {
public:
    struct Stored {
        uint64_t key, block_key;
    };

    Stored& operator[](uint32_t row) { return stored_[row]; }
    const Stored& operator[](uint32_t row) const { return stored_[row]; }

    HashRow get(uint32_t row) const {
        const Head& head = heads_[after(row) - 1];
        const uint64_t parent = head.row == row ? head.parent : stored_[row - 1].key;
        return {stored_[row].key, stored_[row].block_key, parent, head.depth + (row - head.row)};
    }

    // Writes the next row; `row` counts those before it.
    void append(uint32_t row, const HashRow& added) {
        stored_[row] = {added.key, added.block_key};
        if (row == 0 || !is_child(added, stored_[row - 1].key, heads_.back(), row)) heads_.push_back(head_of(added, row));
    }

    // Replaces the row, and leaves all others as they are.
    void set(uint32_t row, uint32_t n_rows, const HashRow& changed) {
        if (row + 1 < n_rows) split(row + 1);
        split(row);
        stored_[row] = {changed.key, changed.block_key};
        Head& head = heads_[after(row) - 1];
        head.parent = changed.parent;
        head.depth = changed.depth;
    }

    // No further row will come.
    void settle() { heads_.shrink_to_fit(); }

private:
    struct __attribute__((packed)) Head {
        uint64_t parent;
        uint32_t depth;
        uint16_t row;
    };
    static_assert(kChunkRows <= 1 << 16);

    static bool is_child(const HashRow& row, uint64_t before, const Head& head, uint32_t number) {
        return row.depth != 0 && row.parent == before && row.depth == head.depth + (number - head.row);
    }

    // Returns the first head after `row`.
    size_t after(uint32_t row) const {
        const auto found = std::upper_bound(heads_.begin(), heads_.end(), row, [](uint32_t r, const Head& head) { return r < head.row; });
        return static_cast<size_t>(found - heads_.begin());
    }

    // Has a run begin at `row`.
    void split(uint32_t row) {
        const HashRow whole = get(row);
        const size_t next = after(row);
        if (heads_[next - 1].row != row) heads_.insert(heads_.begin() + static_cast<std::ptrdiff_t>(next), head_of(whole, row));
    }

    static Head head_of(const HashRow& row, uint32_t number) { return {row.parent, row.depth, static_cast<uint16_t>(number)}; }

    std::vector<Head> heads_;  // by row
    Stored stored_[kChunkRows];
};

}  // namespace kvatlas
