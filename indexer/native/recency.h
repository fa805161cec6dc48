// An ordered set of keys, least recently used first, with exact order, at 8 bytes per key plus its slot in a hash index.
//
// Keys are rows in a log of chunks. A renewed key is written again at the end and its old row marked dead; the oldest key
// is the first live row. Chunks without live rows are returned, and sparse neighbours are merged.
// Compared to linked nodes this saves the links, and eviction, iteration and removal of a holder read memory in order.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>

#include "pages.h"
#include "positions.h"

namespace kvatlas {

struct KeyRow {
    uint64_t key;
};

struct CopiesRow {
    uint64_t key;
    uint64_t copies;
};

inline constexpr uint32_t kChunkRows = 1024;
inline constexpr uint32_t kNoChunk = ~uint32_t{0};

// The rows of a chunk. Specializations may store less than a `Row` for each.
template <class Row>
class RowStore {
public:
    using Stored = Row;

    Row& operator[](uint32_t row) { return rows_[row]; }
    const Row& operator[](uint32_t row) const { return rows_[row]; }
    Row get(uint32_t row) const { return rows_[row]; }
    void append(uint32_t row, Row added) { rows_[row] = added; }
    void settle() {}

private:
    Row rows_[kChunkRows];
};

template <class Row>
struct Chunk {
    uint32_t n_live = 0, n_used = 0, previous = kNoChunk, next = kNoChunk;
    uint64_t live[kChunkRows / 64] = {};
    RowStore<Row> rows;  // not initialized: memory that was never used stays with the system

    bool is_live(uint32_t row) const { return (live[row / 64] >> (row % 64) & 1) != 0; }
    void mark(uint32_t row) { live[row / 64] |= uint64_t{1} << row % 64, ++n_live; }
    void unmark(uint32_t row) { live[row / 64] &= ~(uint64_t{1} << row % 64), --n_live; }

    // Writes the next row; returns its number.
    uint32_t append(const Row& added) {
        const uint32_t row = n_used++;
        rows.append(row, added);
        mark(row);
        if (n_used == kChunkRows) rows.settle();
        return row;
    }

    // Returns the first live row from `row` on, kChunkRows if there is none.
    uint32_t live_from(uint32_t row) const {
        if (row >= kChunkRows) return kChunkRows;
        uint64_t bits = live[row / 64] & ~uint64_t{0} << row % 64;
        for (uint32_t word = row / 64;;) {
            if (bits != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
            if (++word == kChunkRows / 64) return kChunkRows;
            bits = live[word];
        }
    }
};

// Chunks for all holders of an index, by number. Memory of returned chunks is reused, not freed.
template <class Row>
class ChunkPool {
public:
    Chunk<Row>& operator[](uint32_t chunk) const {
        return static_cast<Chunk<Row>*>(slabs_[chunk / kPerSlab].data())[chunk % kPerSlab];
    }

    uint32_t take() {
        if (free_.empty()) {
            const auto base = static_cast<uint32_t>(slabs_.size() * kPerSlab);
            if (base > kNoChunk / kChunkRows - kPerSlab) throw std::bad_alloc();
            slabs_.emplace_back(kPerSlab * sizeof(Chunk<Row>));
            for (uint32_t chunk = kPerSlab; chunk-- > 0;) free_.push_back(base + chunk);
        }
        const uint32_t chunk = free_.back();
        free_.pop_back();
        new (&(*this)[chunk]) Chunk<Row>;
        return chunk;
    }

    void give(uint32_t chunk) {
        (*this)[chunk].~Chunk();
        free_.push_back(chunk);
    }

    size_t n_chunks() const { return slabs_.size() * kPerSlab; }
    size_t n_bytes() const { return (n_chunks() - free_.size()) * sizeof(Chunk<Row>); }

private:
    static constexpr uint32_t kPerSlab = (size_t{1} << 20) / sizeof(Chunk<Row>);
    std::vector<Pages> slabs_;
    std::vector<uint32_t> free_;
};

template <class Row>
class OrderedKeys {
public:
    using Stored = typename RowStore<Row>::Stored;

    OrderedKeys(ChunkPool<Row>& pool, Mixer mixer) : pool_(&pool), mixer_(mixer) {}
    OrderedKeys(const OrderedKeys&) = delete;
    OrderedKeys& operator=(const OrderedKeys&) = delete;
    ~OrderedKeys() { clear(); }

    size_t size() const { return size_; }
    size_t n_bytes() const { return positions_.n_bytes(); }
    void prefetch(uint64_t key) const { positions_.prefetch(mixer_(key)); }

    // Returns what is stored of the row of `key`, null if absent; valid until the next change.
    Stored* find(uint64_t key) {
        const auto position = locate(key);
        return position ? &stored(*position) : nullptr;
    }

    // Returns the row of `key`.
    std::optional<Row> get(uint64_t key) const {
        const auto position = locate(key);
        return position ? std::optional(at(*position / kChunkRows).rows.get(*position % kChunkRows)) : std::nullopt;
    }

    // Replaces the row of the same key, which keeps its place; returns false if absent.
    bool set(const Row& changed) {
        const auto position = locate(changed.key);
        if (!position) return false;
        Chunk<Row>& chunk = at(*position / kChunkRows);
        chunk.rows.set(*position % kChunkRows, chunk.n_used, changed);
        return true;
    }

    // Adds a key that is absent as the most recent.
    void push_back(const Row& added) {
        const uint32_t position = append(added);
        positions_.insert(mixer_(added.key), position, Rows{*this});
        ++size_;
    }

    // Makes `key` the most recent; returns false if absent.
    bool renew(uint64_t key) {
        const auto position = locate(key);
        if (!position) return false;
        const uint32_t chunk = *position / kChunkRows;
        if (chunk == tail_ && *position % kChunkRows + 1 == at(tail_).n_used) return true;
        const Row moved = at(chunk).rows.get(*position % kChunkRows);
        positions_.replace(mixer_(key), *position, append(moved));
        kill(*position);
        return true;
    }

    bool has(uint64_t key) const { return locate(key).has_value(); }

    // Gives the row of `key`, which is present, to `other`, which is absent.
    void rename(uint64_t key, uint64_t other) {
        const uint32_t position = *locate(key);
        positions_.erase(mixer_(key), position);
        stored(position).key = other;
        positions_.insert(mixer_(other), position, Rows{*this});
    }

    bool erase(uint64_t key) {
        const auto position = locate(key);
        if (!position) return false;
        take_out(key, *position);
        return true;
    }

    // Removes and returns the least recently used key; the set must not be empty.
    Row pop_front() {
        const uint32_t first = oldest_row();
        const Row oldest = at(head_).rows.get(first);
        prefetch(at(head_).rows[std::min(first + kAhead, kChunkRows - 1)].key);  // likely removed soon
        take_out(oldest.key, head_ * kChunkRows + first);
        return oldest;
    }

    // Returns the least recently used key; the set must not be empty.
    Stored& front() { return at(head_).rows[oldest_row()]; }

    // Returns whether `position` is a row of this set; positions from callers are not trusted.
    bool is_row(uint32_t position) const {
        if (position / kChunkRows >= pool_->n_chunks() || !at(position / kChunkRows).is_live(position % kChunkRows)) return false;
        return locate(stored(position).key) == position;
    }

    // Copies rows after position `after` (none: from the oldest) into `out`; returns the last copied position.
    std::optional<uint32_t> read(std::optional<uint32_t> after, size_t n_rows, std::vector<Row>& out) const {
        uint32_t chunk = after ? *after / kChunkRows : head_;
        uint32_t next = after ? *after % kChunkRows + 1 : 0;
        while (chunk != kNoChunk && out.size() < n_rows) {
            const uint32_t found = at(chunk).live_from(next);
            if (found == kChunkRows) {
                chunk = at(chunk).next;
                next = 0;
                continue;
            }
            out.push_back(at(chunk).rows.get(found));
            after = chunk * kChunkRows + found;
            next = found + 1;
        }
        return after;
    }

    // Frees the hash index: only `drain` and the destructor may follow.
    void abandon() { positions_ = PositionIndex(); }

    // Moves up to `n_keys` of the oldest keys to `out`.
    void drain(size_t n_keys, std::vector<uint64_t>& out) {
        while (head_ != kNoChunk && n_keys > 0) {
            Chunk<Row>& chunk = at(head_);
            uint32_t found = chunk.live_from(0);
            for (; found != kChunkRows && n_keys > 0; found = chunk.live_from(found), --n_keys, --size_) {
                out.push_back(chunk.rows[found].key);
                chunk.unmark(found);
            }
            if (chunk.n_live == 0) unlink(head_);
        }
    }

    void clear() {
        while (head_ != kNoChunk) unlink(head_);
        positions_ = PositionIndex();
        size_ = 0;
    }

private:
    static constexpr uint32_t kAhead = 8;

    Chunk<Row>& at(uint32_t chunk) const { return (*pool_)[chunk]; }
    Stored& stored(uint32_t position) const { return at(position / kChunkRows).rows[position % kChunkRows]; }

    // Access of the hash index to the rows.
    struct Rows {
        const OrderedKeys& keys;
        uint64_t hash(uint32_t position) const { return keys.mixer_(keys.stored(position).key); }
        void prefetch(uint32_t position) const { __builtin_prefetch(&keys.stored(position)); }
    };

    uint32_t oldest_row() const {
        const uint32_t first = at(head_).live_from(0);
        if (first == kChunkRows) __builtin_unreachable();  // chunks without live rows are unlinked
        return first;
    }

    std::optional<uint32_t> locate(uint64_t key) const {
        return positions_.find(mixer_(key), [&](uint32_t position) { return stored(position).key == key; });
    }

    void take_out(uint64_t key, uint32_t position) {
        if (--size_ == 0) {
            positions_ = PositionIndex();
        } else {
            positions_.erase(mixer_(key), position);
        }
        kill(position);
    }

    uint32_t append(const Row& added) {
        if (tail_ == kNoChunk || at(tail_).n_used == kChunkRows) {
            const uint32_t fresh = pool_->take();
            at(fresh).previous = tail_;
            (tail_ == kNoChunk ? head_ : at(tail_).next) = fresh;
            tail_ = fresh;
        }
        return tail_ * kChunkRows + at(tail_).append(added);
    }

    void kill(uint32_t position) {
        const uint32_t chunk = position / kChunkRows;
        at(chunk).unmark(position % kChunkRows);
        if (at(chunk).n_live == 0) {
            unlink(chunk);
        } else if (!merge(at(chunk).previous, chunk)) {
            merge(chunk, at(chunk).next);
        }
    }

    void unlink(uint32_t chunk) {
        const uint32_t previous = at(chunk).previous, next = at(chunk).next;
        (previous == kNoChunk ? head_ : at(previous).next) = next;
        (next == kNoChunk ? tail_ : at(next).previous) = previous;
        pool_->give(chunk);
    }

    // Moves the rows of two sparse neighbours to a new chunk. The last chunk is skipped, since it is being filled.
    bool merge(uint32_t left, uint32_t right) {
        constexpr uint32_t kSparse = kChunkRows / 4 * 3;  // a quarter stays dead, so that merges stay rare
        if (left == kNoChunk || right == kNoChunk || right == tail_) return false;
        if (at(left).n_live + at(right).n_live > kSparse) return false;
        const uint32_t merged = pool_->take();
        Chunk<Row>& to = at(merged);
        for (const uint32_t from : {left, right}) {
            const Chunk<Row>& chunk = at(from);
            for (uint32_t r = chunk.live_from(0); r != kChunkRows; r = chunk.live_from(r + 1)) {
                const uint32_t row = to.append(chunk.rows.get(r));
                positions_.replace(mixer_(chunk.rows[r].key), from * kChunkRows + r, merged * kChunkRows + row);
            }
        }
        to.rows.settle();
        to.previous = at(left).previous;
        to.next = at(right).next;
        (to.previous == kNoChunk ? head_ : at(to.previous).next) = merged;
        at(to.next).previous = merged;  // `right` is not the last
        pool_->give(left);
        pool_->give(right);
        return true;
    }

    ChunkPool<Row>* pool_;
    Mixer mixer_;
    PositionIndex positions_;
    size_t size_ = 0;
    uint32_t head_ = kNoChunk, tail_ = kNoChunk;
};

}  // namespace kvatlas
